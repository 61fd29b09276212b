#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/checkpoint.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/inspect.h"
#include "engine/checkpoint/source.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/tests/scratch.h"

namespace folder_test {

using namespace meshwright;
using namespace meshwright::checkpoint;
namespace fs = std::filesystem;
using scratch::caught, scratch::message_of, scratch::names_in;

namespace {

struct Folder : scratch::Folder {
  fs::path own = path / "run" / "checkpoints";
  Folder() { fs::create_directories(path / "run"); }
  fs::path at(int64_t step) const { return own / step_name(step); }
  // A small one without tensors.
  fs::path save(int64_t step, int64_t keep = 2, const std::string& text = "{}",
                int64_t keep_every = 0, std::optional<BestLoss> best = {}) const {
    Publication publication(own, step);
    base::write_durably(publication.temporary() / "config.json", text);
    Meta meta;
    meta.step = step;
    meta.best = best;
    meta.files = {{"config.json", static_cast<int64_t>(text.size()), {checksum(text)}}};
    return publication.publish(meta, {keep, keep_every});
  }
};

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("names of steps") {
  CHECK(step_name(50) == "step_00000050");
  CHECK(step_name(1234567890) == "step_1234567890");
  CHECK(step_of("step_00000050") == 50);
  CHECK(step_of("step_1234567890") == 1234567890);
  for (const char* name :
       {"step_50", "step_", "step_0000005x", "step_-0000001", ".step_00000050.tmp", "latest",
        "step_00000050.old", "step_99999999999999999999"})
    CHECK(!step_of(name));
}

TEST_CASE(
    "the last ones are kept, `latest` follows, and leftovers of cut-off saves go with the next "
    "one") {
  Folder folder;
  CHECK(find_all(folder.own).empty());
  CHECK(!newest(folder.own));
  CHECK(folder.save(10) == folder.at(10));
  folder.save(20);
  fs::create_directories(folder.own / ".step_00000025.tmp" / "source");
  folder.put(folder.own / ".step_00000025.tmp" / "model", "half");
  fs::create_directories(folder.own / ".step_00000005.old");
  folder.put(folder.own / "notes.txt", "mine");
  folder.save(30);
  CHECK(names_in(folder.own) == Names{"latest", "notes.txt", "step_00000020", "step_00000030"});
  CHECK(fs::read_symlink(folder.own / "latest") == "step_00000030");
  CHECK(newest(folder.own)->step == 30);
  {
    Publication cut_off(folder.own, 40);
    base::write_durably(cut_off.temporary() / "config.json", "x");
  }
  CHECK(names_in(folder.own) == Names{"latest", "notes.txt", "step_00000020", "step_00000030"});
  // One of the same step is replaced.
  folder.save(30, 1, "{\"new\": 1}");
  CHECK(names_in(folder.own) == Names{"latest", "notes.txt", "step_00000030"});
  CHECK(fs::file_size(folder.at(30) / "config.json") == 10);
}

TEST_CASE("a meta.json that does not read back gets no name, and nothing is removed for it") {
  Folder folder;
  folder.save(10);
  const std::string told = message_of(
      [&] { folder.save(20, 1, "{}", 0, BestLoss{20, std::nan("")}); }, ErrorCode::internal);
  CHECK(told.starts_with("the new checkpoint could not be read: "));
  CHECK(names_in(folder.own) == Names{"latest", "step_00000010"});
  CHECK(newest(folder.own)->step == 10);
}

TEST_CASE("what a save that was cut off could not do is done by the run that continues") {
  Folder folder;
  folder.save(10);
  folder.save(20);
  // Cut off between the rename and the rest.
  base::link_durably("step_00000010", folder.own / "latest");
  fs::create_directories(folder.own / ".step_00000005.old");
  fs::create_symlink("step_00000020", folder.own / ".latest.tmp");
  std::ofstream(folder.own / ".latest.0123456789abcdef.tmp") << "step_";
  set_aside(choose_start("auto", folder.own, false), folder.own);
  CHECK(names_in(folder.own) == Names{"latest", "step_00000010", "step_00000020"});
  CHECK(fs::read_symlink(folder.own / "latest") == "step_00000020");
}

TEST_CASE("a damaged newest one is not passed over in silence") {
  Folder folder;
  folder.save(10);
  folder.save(20);
  std::ofstream(folder.at(20) / "config.json") << "longer than it was";
  CHECK(find_all(folder.own)[1].problem ==
        (folder.at(20) / "config.json").string() + ": the file has 18 bytes, meta.json says 2");
  Error error = caught([&] { newest(folder.own); });
  CHECK(error.code() == ErrorCode::bad_checkpoint);
  CHECK(error.helps().at(0) == "set checkpoint.resume = \"" + folder.at(10).string() +
                                   "\" to continue the newest one that is whole");
  // Who only reads it sets no key.
  error = caught([&] { newest(folder.own, For::reading); });
  CHECK(error.key().empty());
  CHECK(error.helps().at(0) == "name the newest one that is whole: " + folder.at(10).string());
  fs::remove(folder.at(20) / "config.json");
  fs::create_symlink(folder.at(10) / "config.json", folder.at(20) / "config.json");
  CHECK(find_all(folder.own)[1].problem ==
        (folder.at(20) / "config.json").string() + ": not a regular file of this folder");
}

TEST_CASE("a checkpoint is of the step that it holds, not of the one that its name says") {
  Folder folder;
  folder.save(30);
  folder.save(40);
  auto misname = [&](int64_t step, int64_t as) { fs::rename(folder.at(step), folder.at(as)); };
  auto text = [&](int64_t as, int64_t step) {
    return folder.at(as).string() + ": its name says step " + std::to_string(as) +
           ", its meta.json step " + std::to_string(step);
  };
  // Nothing is lost over it: the newest is another one, and this one goes out of the way.
  misname(30, 99);
  Start start = choose_start("auto", folder.own, false);
  CHECK(start.from == folder.at(40));
  CHECK(start.told == Names{text(99, 30) + "; it is passed over"});
  CHECK(newest(folder.own, For::reading)->step == 40);
  CHECK(next_start(folder.own) == "step_00000040");
  CHECK(verify_checkpoint(folder.at(99), [](int64_t) {}).damage.at(0).message() == text(99, 30));
  CHECK(list_checkpoints(folder.own)[0].checkpoints.back().found.problem == text(99, 30));
  CHECK(list_checkpoints(folder.at(99))[0].checkpoints[0].found.problem == text(99, 30));
  CHECK(message_of([&] { choose_start(folder.at(99), folder.own, false); },
                   ErrorCode::bad_checkpoint) == text(99, 30));
  set_aside(start, folder.own);
  CHECK(names_in(folder.own) == Names{"latest", "step_00000040"});
  // Where it holds more than the others, whoever gave it that name gives it back.
  folder.save(50);
  for (const int64_t as : {int64_t{7}, int64_t{99}}) {
    misname(50, as);
    const Error error = caught([&] { choose_start("auto", folder.own, false); });
    CHECK(error.code() == ErrorCode::bad_checkpoint);
    CHECK(error.message() == text(as, 50));
    CHECK(error.helps().at(0) ==
          "give it its own name: mv " + folder.at(as).string() + " " + folder.at(50).string());
    CHECK(error.helps().at(1) == "set checkpoint.resume = \"" + folder.at(40).string() +
                                     "\" to continue the newest one that is whole");
    fs::rename(folder.at(as), folder.at(50));
  }
  CHECK(choose_start("auto", folder.own, false).from == folder.at(50));
}

TEST_CASE("a checkpoint that was read is let go of") {
  Folder folder;
  Checkpoint opened(folder.save(10));
  auto mapped = [&] {
    return base::read_file("/proc/self/maps").find(folder.at(10).string()) != std::string::npos;
  };
  CHECK(opened.read_file("config.json") == "{}");
  CHECK(mapped());
  opened.release();
  CHECK(!mapped());
  CHECK(opened.read_file("config.json") == "{}");
}

TEST_CASE("what cannot be listed is told to a run by its settings, to who reads by what to name") {
  Folder folder;
  std::ofstream(folder.own) << "no folder";
  for (const For use : {For::resuming, For::reading}) {
    const Error error = caught([&] { find_all(folder.own, use); });
    CHECK(error.code() == ErrorCode::no_checkpoint);
    CHECK(scratch::has(error.helps().at(0), "run.name") == (use == For::resuming));
  }
}

TEST_CASE("a path means a checkpoint, a folder of some, or a run") {
  Folder folder;
  folder.save(10);
  folder.save(20);
  for (const fs::path& path :
       {folder.own, folder.path / "run", folder.own / "latest", folder.at(20)})
    CHECK(resolve(path) == folder.at(20));
  CHECK(resolve(folder.at(10)) == folder.at(10));
  // `latest` may be set back by hand, or be a file where links are not to be had, or lead out of
  // the folder.
  base::link_durably("step_00000010", folder.own / "latest");
  CHECK(resolve(folder.own) == folder.at(10));
  fs::remove(folder.own / "latest");
  std::ofstream(folder.own / "latest") << "step_00000010\n";
  CHECK(resolve(folder.own) == folder.at(10));
  base::link_durably("../../elsewhere/step_00000010", folder.own / "latest");
  CHECK(resolve(folder.own) == folder.at(20));
  CHECK(message_of([&] { resolve(folder.path); }, ErrorCode::no_checkpoint) ==
        folder.path.string() + " holds no checkpoint");
  CHECK(message_of([&] { resolve(folder.path / "no"); }, ErrorCode::no_checkpoint) ==
        (folder.path / "no").string() + " does not exist");
}

TEST_CASE("what a run continues, and what makes way for it") {
  Folder folder;
  CHECK(choose_start("auto", folder.own, false).from.empty());
  CHECK(set_aside({}, folder.own).empty());
  for (int64_t step : {10, 20, 30}) folder.save(step, 5);
  Start start = choose_start("auto", folder.own, false);
  CHECK(start.from == folder.at(30));
  CHECK(start.own);
  CHECK(set_aside(start, folder.own).empty());
  // Back to an earlier one of its own: later ones are kept aside.
  start = choose_start(folder.at(20), folder.own, false);
  CHECK(start.own);
  CHECK(set_aside(start, folder.own) == folder.own.string() + ".1");
  CHECK(names_in(folder.own) == Names{"latest", "step_00000010", "step_00000020"});
  CHECK(fs::read_symlink(folder.own / "latest") == "step_00000020");
  CHECK(names_in(folder.own.string() + ".1") == Names{"latest", "step_00000030"});
  // After a restart its own newest one wins over a path.
  CHECK(choose_start(folder.at(10), folder.own, true).from == folder.at(20));
  CHECK(choose_start("none", folder.own, true).from == folder.at(20));
  // Somebody else's.
  fs::path other = folder.path / "other" / "checkpoints";
  CHECK(choose_start(folder.own.string(), other, false).from == folder.at(20));
  CHECK(!choose_start(folder.own.string(), other, true).own);
  // Afresh.
  start = choose_start("none", folder.own, false);
  CHECK(start.from.empty());
  CHECK(set_aside(start, folder.own) == folder.own.string() + ".2");
  CHECK(names_in(folder.own).empty());
  CHECK(message_of([&] { choose_start("nowhere", folder.own, false); }, ErrorCode::no_checkpoint) ==
        "nowhere does not exist");
}

TEST_CASE("what keep_every names stays beside the newest") {
  const Folder folder;
  for (int64_t step = 10; step <= 80; step += 10) folder.save(step, 2, "{}", 30);
  CHECK(names_in(folder.own) ==
        Names{"latest", "step_00000030", "step_00000060", "step_00000070", "step_00000080"});
  CHECK(latest_of(folder.own) == folder.at(80));
  folder.save(90, 1, "{}", 0);  // asked for no longer
  CHECK(names_in(folder.own) == Names{"latest", "step_00000090"});
}

TEST_CASE("the best stays, however old, and comes back with the checkpoint that knows it") {
  const Folder folder;
  folder.save(10, 1);
  CHECK(!best_of(folder.own));
  folder.save(20, 1, "{}", 0, BestLoss{20, 1.5});
  folder.save(30, 1, "{}", 0, BestLoss{20, 1.5});
  folder.save(40, 1, "{}", 0, BestLoss{20, 1.5});
  CHECK(names_in(folder.own) == Names{"best", "latest", "step_00000020", "step_00000040"});
  CHECK(best_of(folder.own) == folder.at(20));
  CHECK(resolve(folder.own / "best") == folder.at(20));
  const Meta read = Checkpoint(folder.at(40)).meta();
  REQUIRE(read.best);
  CHECK(read.best->step == 20);
  CHECK(read.best->loss == 1.5);
  folder.save(50, 2, "{}", 0, BestLoss{50, 0.1});
  CHECK(names_in(folder.own) == Names{"best", "latest", "step_00000040", "step_00000050"});
  // A run goes on from step 40, whose best has gone; and from there to a new one.
  const std::string aside = set_aside(folder.own, 40);
  CHECK(names_in(aside) == Names{"best", "latest", "step_00000050"});
  CHECK(names_in(folder.own) == Names{"step_00000040"});
  folder.save(41, 2, "{}", 0, BestLoss{20, 1.5});
  CHECK(!best_of(folder.own));
  folder.save(42, 2, "{}", 0, BestLoss{42, 1.25});
  CHECK(best_of(folder.own) == folder.at(42));
  folder.save(43);  // best = false again: what is there is not taken away
  folder.save(44);
  folder.save(45);
  CHECK(names_in(folder.own) ==
        Names{"best", "latest", "step_00000042", "step_00000044", "step_00000045"});
}

}  // namespace folder_test
