// Whatever ends one rank ends all of them, soon, with the same words and the same exit status; and
// ranks that would train on different files, or save into different folders, do not begin.
#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "program.h"
#include "sdk/comm/tests/sampled.h"

using namespace faults;
namespace fs = std::filesystem;

namespace {

// Nobody may wait for this: the ranks end together, or the case takes far too long.
constexpr double kSoon = 45;

// Of so many ranks of our launcher, or of one of another's.
Words sets(const Words& values, int64_t ranks = 0) {
  return job_words(ranks, {"dist_env.timeout_minutes=2"}, values);
}

// Two ranks as a launcher would start them, in folders of their own, with one file of the job.
struct Two {
  Program zero, one;
  Two() {
    one.share(zero);
    for (const char* name : {"a", "b"}) fs::create_directory(zero.folder() / name);
    zero.in(a());
    one.in(b());
  }
  fs::path a() const { return zero.folder() / "a"; }
  fs::path b() const { return zero.folder() / "b"; }
  void start(const Words& arguments) {
    int port = free_port();
    zero.start(arguments, rank_environment(0, 2, port));
    one.start(arguments, rank_environment(1, 2, port));
  }
  std::vector<Ended> run(const Words& arguments) {
    start(arguments);
    return {zero.wait(120), one.wait(120)};
  }
};

size_t count(const std::string& text, const std::string& part) {
  size_t out = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++out;
  return out;
}

// Under a parent of ours the others may say a word of their broken connections before they are
// ended.
void check_local(const Ended& ended, int code, const std::string& error) {
  CAPTURE(ended.err);
  check_ended(ended, code, {error});
  CHECK(ended.seconds < kSoon);
}

void check_all(const std::vector<Ended>& all, int code, const std::string& error) {
  for (size_t rank = 0; rank < all.size(); ++rank) {
    CAPTURE(rank);
    CAPTURE(all[rank].err);
    CHECK(all[rank].code == code);
    CHECK(all[rank].says(error));
    CHECK(count(all[rank].err, "error[") == 1);
    CHECK(all[rank].seconds < kSoon);
  }
}

// Only the rank that could not see it by itself says where it happened.
void check_where(const std::vector<Ended>& all, size_t at) {
  for (size_t rank = 0; rank < all.size(); ++rank)
    CHECK(all[rank].says("on rank " + std::to_string(at) + " (") == (rank != at));
}

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

void check_no_probe(const fs::path& run) {
  for (const fs::directory_entry& entry : fs::directory_iterator(run))
    CHECK_MESSAGE(!entry.path().filename().string().starts_with(".probe-"), entry.path().string());
}

// As many bytes as a small data set, with one of them changed.
std::string tokens(size_t changed = std::string::npos) {
  std::string out(4000, '\0');
  for (size_t i = 0; i < out.size(); i += 2) out[i] = static_cast<char>(i / 2 % 11);
  if (changed < out.size()) out[changed] = 3;
  return out;
}

}  // namespace

TEST_CASE(
    "a job that no rank can run is refused by all ranks at once, with the exit status of the "
    "refusal") {
  struct Row {
    Words set;
    int code;
    std::string error;
  };
  for (const Row& row : {Row{{"distributed.tp_size=3"}, 3, "error[E0301]: "},
                         Row{{"optimizer.lr=-1"}, 2, "error[E02"},
                         Row{{"model.pretrained=/no/such/folder"}, 2, "error[E0209]: "}}) {
    INFO(std::string(row.set[0]));
    Two two;
    check_all(two.run(sets(row.set)), row.code, row.error);
    Program local;
    check_all({local.run(sets(row.set, 2))}, row.code, row.error);
  }
}

TEST_CASE(
    "what only one rank refuses before the ranks have met ends the others with the same error, "
    "which says on which rank") {
  for (size_t blind : {0, 1}) {
    CAPTURE(blind);
    Two two;
    fs::copy(two.zero.copy_model(), (blind == 0 ? two.b() : two.a()) / "here");
    std::vector<Ended> all = two.run(sets({"model.pretrained=here"}));
    check_all(all, 2, "error[E0209]: ");
    check_where(all, blind);
  }
}

TEST_CASE(
    "a rank that refuses the job while no other is started ends by itself, with its own words" *
    doctest::test_suite("whole")) {
  // Each of a job of its own; both wait for others beside each other.
  Program ranks[2];
  for (int64_t rank : {0, 1})
    ranks[rank].start(sets({"distributed.tp_size=3"}), rank_environment(rank, 2, free_port()));
  for (Program& program : ranks) {
    const Ended ended = program.wait(120);
    check_all({ended}, 3, "error[E0301]: ");
    CHECK(!ended.says("on rank "));
  }
}

TEST_CASE(
    "what only rank 0 does and cannot do ends all ranks alike, before, between and after the "
    "steps" *
    doctest::test_suite("whole")) {
  struct Row {
    const char* what;
    void (*prepare)(const fs::path& run);
    Words set;
    const char* words;
  };
  size_t number = 0;  // ddp: every second one
  for (const Row& row : {
           Row{"the run folder cannot be made",
               [](const fs::path& run) {
                 fs::create_directories(run.parent_path());
                 std::ofstream(run) << "a file";
               },
               {},
               "error[E0705]: "},
           Row{"the copy of the configuration cannot be written",
               [](const fs::path& run) { write(run / "config.toml" / "in the way", ""); },
               {},
               "error[E0705]: "},
           Row{"a row of metrics.jsonl cannot be written",
               [](const fs::path& run) {
                 fs::create_directories(run);
                 fs::create_symlink("/dev/full", run / "metrics.jsonl");
               },
               {},
               "metrics.jsonl: No space left on device"},
           Row{"the export after the last step cannot be written",
               [](const fs::path& run) { write(run / "hf", "a file"); },
               {"checkpoint.export=final"},
               "error[E07"},
       }) {
    INFO(std::string(row.what));
    size_t turn = number++;
    for (const char* strategy : {"fsdp2", "ddp"}) {
      if (strategy == std::string("ddp") && !meshwright::sampled(turn, 2)) continue;
      Words set = row.set;
      set.insert(set.end(),
                 {"step_scheduler.max_steps=3", std::string("distributed.strategy=") + strategy});
      Two two;
      row.prepare(two.zero.run_folder());
      check_all(two.run(sets(set)), 7, row.words);
      if (strategy == std::string("ddp")) continue;
      Program local;
      row.prepare(local.run_folder());
      check_local(local.run(sets(set, 2)), 7, row.words);
    }
  }
}

TEST_CASE(
    "a run folder that not every rank sees is refused on all ranks before anything is trained, and "
    "nothing stays there" *
    doctest::test_suite("whole")) {
  Two two;
  std::vector<Ended> all = two.run(sets({"run.dir=runs", "step_scheduler.max_steps=1"}));
  check_all(all, 7, "error[E0708]: ");
  for (const Ended& ended : all) {
    CHECK(ended.says("is not seen by rank 1 ("));
    CHECK(ended.says((two.a() / "runs/fault").string()));
    CHECK(ended.says((two.b() / "runs/fault").string()));
    CHECK(ended.says("help: set run.dir to a folder "));
  }
  CHECK(!fs::exists(two.b() / "runs"));
  CHECK(!fs::exists(two.a() / "runs/fault/metrics.jsonl"));
  check_no_probe(two.a() / "runs/fault");
  // Seen by all of them, under a path that begins elsewhere.
  Two same;
  same.one.in(same.a());
  all = same.run(sets({"run.dir=runs", "step_scheduler.max_steps=1"}));
  for (const Ended& ended : all) CHECK_MESSAGE(ended.code == 0, ended.err);
  check_no_probe(same.a() / "runs/fault");
}

TEST_CASE(
    "ranks whose data or weights differ are told the file and the host, on all ranks, before the "
    "first step" *
    doctest::test_suite("whole")) {
  struct Row {
    const char* what;
    void (*prepare)(const fs::path& folder, bool odd);
    Words set;
    std::string words;
  };
  const Words kTokens{"dataset.path=train.bin"};
  const std::vector<Row> rows = {
      {"one token",
       [](const fs::path& f, bool odd) {
         write(f / "train.bin", tokens(odd ? 1234 : std::string::npos));
       },
       kTokens, "train.bin, of 4000 bytes, has other contents on rank 1 ("},
      {"the size",
       [](const fs::path& f, bool odd) {
         write(f / "train.bin", tokens().substr(0, odd ? 3600 : 4000));
       },
       kTokens, "train.bin has 3600 bytes on rank 1 ("},
      {"a text among several",
       [](const fs::path& f, bool odd) {
         write(f / "texts/one.txt", std::string(500, 'a'));
         write(f / "texts/two.txt", std::string(500, odd ? 'c' : 'b'));
       },
       {"dataset.kind=text", "dataset.path=texts", "dataset.dtype=auto"},
       "texts/two.txt, of 500 bytes, has other contents on rank 1 ("},
      {"a file that the others do not have",
       [](const fs::path& f, bool odd) {
         write(f / "data/one.bin", tokens());
         if (odd) write(f / "data/two.bin", tokens());
       },
       {"dataset.path=data/*.bin"},
       "data/two.bin is on rank 1 ("},
      {"the validation data",
       [](const fs::path& f, bool odd) {
         write(f / "train.bin", tokens());
         write(f / "held.bin", tokens(odd ? 10 : std::string::npos));
       },
       {"dataset.path=train.bin", "validation_dataset.kind=tokens",
        "validation_dataset.dtype=uint16", "validation_dataset.seq_len=40",
        "validation_dataset.path=held.bin"},
       "held.bin, of 4000 bytes, has other contents on rank 1 ("},
  };
  for (const Row& row : rows) {
    INFO(std::string(row.what));
    Two two;
    row.prepare(two.a(), false);
    row.prepare(two.b(), true);
    std::vector<Ended> all = two.run(sets(row.set));
    check_all(all, 7, "error[E0709]: the files of the ");
    for (const Ended& ended : all) {
      CHECK(ended.says(row.words));
      CHECK(ended.says((two.b()).string()));
    }
    CHECK(!fs::exists(two.zero.run_folder() / "metrics.jsonl"));
  }
}

TEST_CASE(
    "weights that differ in one byte are refused on all ranks; files that are alike are not") {
  Two two;
  fs::path model = two.zero.copy_model();
  fs::copy(model, two.a() / "model");
  fs::copy(model, two.b() / "model");
  Words set{"model.pretrained=model", "step_scheduler.max_steps=1"};
  for (const Ended& ended : two.run(sets(set))) CHECK_MESSAGE(ended.code == 0, ended.err);
  fs::path weights = two.b() / "model/model.safetensors";
  auto last = static_cast<std::streamoff>(fs::file_size(weights)) - 1;
  std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(last);
  char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(last);
  file.put(byte);
  file.close();
  set.push_back("checkpoint.resume=none");
  std::vector<Ended> all = two.run(sets(set));
  check_all(all, 7, "error[E0709]: the files of the weights differ: model/model.safetensors, of ");
  // A run that is refused has moved nothing out of its way.
  CHECK(!fs::is_empty(two.zero.run_folder() / "checkpoints"));
  CHECK(!fs::exists(two.zero.run_folder() / "checkpoints.1"));
}

TEST_CASE(
    "a large file is compared at its ends and in places between, or to the last byte with "
    "dataset.verify = whole") {
  Two two;
  constexpr off_t kBytes = 80 << 20, kUnseen = 42110272;  // between two of the places
  for (const fs::path& folder : {two.a(), two.b()}) {
    std::ofstream(folder / "large.bin").put(1);
    fs::resize_file(folder / "large.bin", kBytes);
  }
  auto change = [&](off_t at) {
    std::fstream file(two.b() / "large.bin", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(at);
    file.put(2);
  };
  Words set{"dataset.path=large.bin", "step_scheduler.max_steps=1", "checkpoint.resume=none"};
  change(kUnseen);
  for (const Ended& ended : two.run(sets(set))) CHECK_MESSAGE(ended.code == 0, ended.err);
  Words whole = set;
  whole.push_back("dataset.verify=whole");
  check_all(two.run(sets(whole)), 7,
            "error[E0709]: the files of the training data differ: large.bin, of 83886080 bytes, "
            "has other contents");
  change(kBytes - 10);
  check_all(two.run(sets(set)), 7,
            "error[E0709]: the files of the training data differ: large.bin, of 83886080 bytes, "
            "has other contents");
}
