// A run that was saved on one layout goes on on any other: the same bits, the same losses.
#include "engine/train/run/resume.h"
#include "engine/train/run/saver.h"

// Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/saved.h"
#include "engine/train/run/tests/small_models.h"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <mutex>

#include "engine/checkpoint/inspect.h"

namespace checkpointing_test {

using namespace meshwright;
namespace fs = std::filesystem;

namespace {

const std::vector<Layout> kLayouts = {
    {"fsdp2", 4}, {"fsdp2", 4, {"distributed.dp_replicate_size=2"}},
    {"ddp", 4},   {"fsdp2", 3},
    {"ddp", 2},   {"fsdp2", 1},
    {"ddp", 1},   {"ddp", 3, {"distributed.ddp.gradient_as_bucket_view=false"}}};

}  // namespace

TEST_CASE(
    "what is saved on one layout is bitwise identical on any other, and training goes on as if "
    "nothing had happened") {
  TestFolder folder("checkpointing");
  const int more = steps_of(3, 10);  // moments have a part from the second loss on
  for (size_t a = 0; a < 3; ++a) {
    INFO(kLayouts[a].text());
    fs::path saved = folder.path / ("from_" + std::to_string(a));
    std::vector<double> unbroken = losses_of(kLayouts[a], {}, 3 + more, saved, 3);
    std::map<std::string, std::string> kept = contents(saved / "step_00000003");
    CHECK(kept.size() == 3 * 21);  // weights and two moments
    for (size_t b = 0; b < kLayouts.size(); ++b) {
      if (a != b && !sampled(a + b, 3)) continue;  // beside every other axis: layouts_test.cpp
      INFO(kLayouts[b].text());
      fs::path again = folder.path / ("from_" + std::to_string(a) + "_to_" + std::to_string(b));
      std::vector<double> losses = losses_of(kLayouts[b], saved, more, again, 0);
      CHECK(contents(again / "step_00000003") == kept);
      REQUIRE(losses.size() == static_cast<size_t>(more));
      double worst = 0;
      for (size_t i = 0; i < losses.size(); ++i)
        worst = std::max(worst, std::abs(losses[i] - unbroken[i + 3]));
      CHECK(worst <= (a == b ? 0 : 1e-6));
    }
  }
}

TEST_CASE("every byte is written once, by all ranks alike") {
  TestFolder folder("checkpointing");
  for (const Layout& layout : kLayouts) {
    INFO(layout.text());
    fs::path saved = folder.path / layout.text();
    losses_of(layout, {}, 1, saved, 1);
    checkpoint::Checkpoint from(saved / "step_00000001");
    std::map<std::string, int64_t> bytes;
    int64_t weights = 0;
    for (const checkpoint::FileRecord& file : from.meta().files) {
      bytes[file.name.substr(0, file.name.find('-'))] += file.bytes;
      weights += file.name[0] == 'm' ? 1 : 0;
      if (file.name[0] == 'm') CHECK(file.bytes < 125248 * 4 / layout.ranks + 8000 * 4);
    }
    CHECK(weights == layout.ranks);
    CHECK(bytes["model"] < 125248 * 4 + layout.ranks * 4000);
    CHECK(bytes["optimizer"] < 125248 * 8 + layout.ranks * 20000);
    CHECK(checkpoint::verify_checkpoint(from.folder(), [](int64_t) {}).damage.empty());
  }
}

TEST_CASE(
    "a save beside training equals one that waits, and a failed one leaves the last good one") {
  TestFolder folder("checkpointing");
  for (const Layout& layout :
       {Layout{"fsdp2", 2}, Layout{"ddp", 3}, Layout{"fsdp2", 4, {"distributed.tp_size=2"}}}) {
    INFO(layout.text());
    fs::path waits = folder.path / (layout.text() + " waits"),
             beside = folder.path / (layout.text() + " beside");
    std::vector<double> plain = losses_of(layout, {}, 8, waits, 3);
    std::vector<double> losses;
    std::vector<std::string> reports;
    run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
      Rank rank(layout, world);
      rank.initialize();
      train::Saver::Settings settings;
      settings.folder = beside;
      settings.keep.newest = 2;
      settings.background = true;
      settings.done = [&](const train::SaveReport& report) {
        if (world->rank() == 0)
          reports.push_back(std::to_string(report.step) +
                            (report.error ? " " + report.error->message() : ""));
      };
      train::Saver saver(rank.trainer, std::move(settings));
      std::vector<double> mine;
      for (int step = 0; step < 8; ++step) {
        saver.before_step();
        StepResult result = rank.step();
        saver.after_step(result);
        mine.push_back(result.loss);
        if (step == 2) saver.save((step + 1) * kBatch, 0);
        if (step == 6) {
          saver.finish();
          if (world->rank() == 1)
            fs::create_directories(beside / ".step_00000007.tmp" /
                                   "model-00002-of-0000x.safetensors");
          world->everyone()->barrier();
          saver.save((step + 1) * kBatch, 0);  // a leftover is in nobody's way
          saver.finish();
          CHECK(saver.last_step() == 7);
          // A file where the folder was: the next one cannot be written.
          if (world->rank() == 0) {
            fs::rename(beside, beside.string() + " kept");
            std::ofstream(beside) << "in the way";
          }
          world->everyone()->barrier();
          saver.save((step + 1) * kBatch, 0);
          saver.finish();
          CHECK(saver.last_step() == 7);
        }
      }
      if (world->rank() == 0) losses = mine;
    });
    CHECK(losses == plain);
    REQUIRE(reports.size() == 3);
    CHECK(reports[0] == "3");
    CHECK(reports[1] == "7");
    CHECK(reports[2].rfind("7 cannot make " + beside.string(), 0) == 0);
    fs::path kept = beside.string() + " kept";
    CHECK(contents(kept / "step_00000003") == contents(waits / "step_00000003"));
    int entries = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(kept)) ++entries;
    CHECK(entries == 3);  // two checkpoints and `latest`
    CHECK(fs::read_symlink(kept / "latest") == "step_00000007");
  }
}

TEST_CASE(
    "a checkpoint of another model or optimizer is refused on every rank, and nothing is loaded "
    "from a damaged one") {
  TestFolder folder("checkpointing");
  fs::path saved = folder.path / "saved";
  losses_of({"fsdp2", 2}, {}, 1, saved, 1);
  auto refused = [&](const Layout& layout, const fs::path& from) {
    std::mutex mutex;
    std::vector<std::string> messages;
    run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
      Rank rank(layout, world);
      try {
        rank.trainer.load(from.string());
      } catch (const Error& error) {
        std::lock_guard lock(mutex);
        messages.push_back(code_string(error.code()) + " " + error.message());
      }
    });
    REQUIRE(messages.size() == static_cast<size_t>(layout.ranks));
    for (const std::string& message : messages) CHECK(message == messages[0]);
    return messages[0];
  };
  CHECK(refused({"ddp", 2, {"optimizer.name=sgd"}}, saved)
            .find("E0713 " + saved.string() +
                  "/step_00000001: it holds the state of the optimizer adamw") == 0);
  CHECK(refused({"ddp", 1}, folder.path / "gone")
            .find("E0712 " + (folder.path / "gone").string() + " does not exist") == 0);
  // One byte of one rank's file: the others hear of it too.
  fs::path file = saved / "step_00000001" / "optimizer-00002-of-00002.safetensors";
  {
    std::fstream damage(file, std::ios::in | std::ios::out | std::ios::binary);
    damage.seekp(200000);
    damage.put('\x55');
  }
  CHECK(refused({"fsdp2", 2}, saved) == "E0711 " + file.string() + ": bytes 0 to " +
                                            std::to_string(fs::file_size(file) - 1) +
                                            " do not match their checksum");
  fs::resize_file(file, 1000);
  CHECK(refused({"ddp", 2}, saved / "step_00000001")
            .find("E0711 " + file.string() + ": the file has 1000 bytes, meta.json says") == 0);
  fs::remove(file);
  CHECK(refused({"ddp", 1}, saved / "step_00000001") ==
        "E0711 " + file.string() + ": the file is missing");
}

TEST_CASE("a rank reads the bytes it needs and no others") {
  TestFolder folder("checkpointing");
  losses_of({"fsdp2", 4}, {}, 1, folder.path, 1);
  struct Row {
    Layout layout;
    int64_t files;  // of 8 that hold tensors
  };
  for (const Row& row : {Row{{"fsdp2", 4}, 2}, Row{{"fsdp2", 2}, 4}, Row{{"ddp", 2}, 8},
                         Row{{"fsdp2", 4, {"distributed.dp_replicate_size=2"}}, 6}}) {
    INFO(row.layout.text());
    std::mutex mutex;
    std::vector<int64_t> read;
    int64_t largest = 0;
    run_ranks(row.layout.ranks, [&](const std::shared_ptr<World>& world) {
      Rank rank(row.layout, world);
      checkpoint::Checkpoint from(folder.path / "step_00000001");
      train::load_checkpoint(rank.trainer, from);
      std::lock_guard lock(mutex);
      read.push_back(from.bytes_checked());
      largest = std::max(largest, from.bytes() * row.files / 8);
    });
    // Files this small are one block each, so what is read is whole files: those with the rows, and
    // the one with the generator of the rank's own number.
    for (int64_t bytes : read) CHECK(bytes <= largest * 11 / 10);
  }
}

TEST_CASE(
    "replicas that differ are refused on every rank, with what differs and where, and nothing is "
    "left of the save") {
  struct Row {
    Layout layout;
    int64_t odd;         // the rank that changes something
    bool state;          // of the optimizer, not a weight
    const char* others;  // that hold the same
  };
  for (const Row& row :
       {Row{{"ddp", 3}, 1, false, "ranks 0, 2"}, Row{{"ddp", 2}, 1, true, "rank 0"},
        Row{{"fsdp2", 4, {"distributed.dp_replicate_size=2"}}, 3, false, "rank 1"}}) {
    INFO(row.layout.text());
    for (bool background : {false, true}) {
      TestFolder folder("checkpointing");
      std::mutex mutex;
      std::vector<std::string> messages;
      run_ranks(row.layout.ranks, [&](const std::shared_ptr<World>& world) {
        Rank rank(row.layout, world);
        rank.initialize();
        rank.step();
        train::Saver::Settings settings;
        settings.folder = folder.path / "checkpoints";
        settings.background = background;
        settings.done = [&](const train::SaveReport& report) {
          std::lock_guard lock(mutex);
          messages.push_back(report.error
                                 ? code_string(report.error->code()) + " " + report.error->message()
                                 : "saved");
        };
        train::Saver saver(rank.trainer, std::move(settings));
        saver.save(kBatch, 0);
        saver.finish();
        world->everyone()->barrier();
        if (world->rank() == row.odd) {
          c10::NoGradGuard no_grad;
          if (row.state)
            train::optimizer_of(rank.trainer).state()[1].tensors[0].add_(1e-3);
          else
            for (const ParallelParameter& p : rank.trainer.model().parameters())
              if (p.local.numel() > 0) {
                at::Tensor(p.local.detach()).view({-1})[0].add_(1e-3);
                break;
              }
        }
        rank.trainer.set_next_step(2);
        saver.save(2 * kBatch, 0);
        saver.finish();
      });
      auto ranks = static_cast<size_t>(row.layout.ranks);
      REQUIRE(messages.size() == 2 * ranks);
      CHECK(std::count(messages.begin(), messages.end(), "saved") == row.layout.ranks);
      const std::string& message = messages.back();
      CAPTURE(message);
      CHECK(std::count(messages.begin(), messages.end(), message) == row.layout.ranks);
      CHECK(message.find("E0714 rank " + std::to_string(row.odd) + " holds other values of " +
                         (row.state ? "exp_avg" : "")) == 0);
      CHECK(message.find(std::string(" than ") + row.others) != std::string::npos);
      CHECK(message.find(" (by up to 0.001, where the largest is ") != std::string::npos);
      CHECK(message.find(" elements)") != std::string::npos);
      CHECK(message.find(": they are copies of each other in the layout of " +
                         std::string(row.layout.strategy) + ", ") != std::string::npos);
      CHECK(fs::exists(folder.path / "checkpoints" / "step_00000001"));
      CHECK(!fs::exists(folder.path / "checkpoints" / "step_00000002"));
      CHECK(!fs::exists(folder.path / "checkpoints" / ".step_00000002.tmp"));
    }
  }
}

TEST_CASE("a tensor on one rank alone costs no digest") {
  run_ranks(4, [&](const std::shared_ptr<World>& world) {
    Rank rank({"fsdp2", 4}, world);
    std::vector<train::LocalTensor> tensors = train::local_state(rank.trainer);
    CHECK(train::Shares(*world, tensors).replicas().empty());
  });
}

TEST_CASE(
    "a run that goes on in narrower dtypes than its checkpoint is refused; in wider ones it is "
    "told") {
  TestFolder folder("checkpointing");
  Layout wide{"fsdp2", 2}, narrow = wide;
  narrow.storage = DType::bfloat16;
  losses_of(wide, {}, 1, folder.path / "wide", 1);
  losses_of(narrow, {}, 1, folder.path / "narrow", 1);
  std::mutex mutex;
  std::vector<std::string> refused, told;
  run_ranks(2, [&](const std::shared_ptr<World>& world) {
    Rank rank(narrow, world);
    try {
      rank.trainer.load((folder.path / "wide").string());
    } catch (const Error& error) {
      std::lock_guard lock(mutex);
      CHECK(error.code() == ErrorCode::checkpoint_mismatch);
      CHECK(error.key() == "model.torch_dtype");
      REQUIRE(error.helps().size() == 3);
      CHECK(error.helps()[0] == "set model.torch_dtype = \"float32\"");
      CHECK(error.helps()[1].find("set optimizer.main_dtype = \"float32\"") == 0);
      CHECK(error.helps()[2].find("meshwright checkpoint export " +
                                  (folder.path / "wide").string()) != std::string::npos);
      refused.push_back(error.message());
    }
  });
  REQUIRE(refused.size() == 2);
  CHECK(refused[0].find("it holds weights in float32, this job in bfloat16, which would round them "
                        "for good (16 bits of each fraction)") != std::string::npos);
  run_ranks(2, [&](const std::shared_ptr<World>& world) {
    Rank rank(wide, world);
    rank.trainer.load((folder.path / "narrow").string());
    std::lock_guard lock(mutex);
    for (const std::string& notice : world->notices()) told.push_back(notice);
  });
  REQUIRE(told.size() == 2);  // each rank of its parts
  for (const std::string& notice : told)
    CHECK(notice.find("the checkpoint holds weights in bfloat16, this job in float32") == 0);
}

}  // namespace checkpointing_test
