// What a job is asked for is read once, held against what its run was, and refused without a trace.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "program.h"

namespace given_test {

using namespace faults;
namespace fs = std::filesystem;

namespace {

void replace(const fs::path& file, const std::string& from, const std::string& to) {
  std::string text = read_file(file);
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  std::ofstream(file) << text.replace(at, from.size(), to);
}

std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> out;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) out[entry.path().string()] = read_file(entry.path());
  return out;
}

}  // namespace

TEST_CASE(
    "a file that is edited changes nothing in a restart; when the run is finished, another job of "
    "its name is refused with what differs, and leaves no trace" *
    doctest::test_suite("whole")) {
  Program program;
  const fs::path weights = program.copy_model() / "model.safetensors",
                 tokens = program.copy_tokens();
  const std::string data = MESHWRIGHT_SOURCE_DIR "/tests/data/parity/";
  replace(program.job(), data + "llama", weights.parent_path().string());
  replace(program.job(), data + "train.bin", tokens.string());
  const Words sets{"step_scheduler.max_steps=200", "checkpoint.every_steps=20",
                   "step_scheduler.global_batch_size=6", "checkpoint.on_failure=${GIVEN_TEST}"};
  const Environment environment{{"GIVEN_TEST", "stop"}};
  Words restarted = job_words(2, sets);
  restarted.insert(restarted.end(), {"--max-restarts", "1"});
  program.start(restarted, environment);
  program.wait_for_steps(5);
  replace(program.job(), "lr = 1e-3", "lr = 0.25");
  replace(program.job(), "name = \"fault\"", "name = \"another\"");
  ::kill(program.rank(1), SIGKILL);
  Ended ended = program.wait();
  CAPTURE(ended.err);
  check_ended(ended, 0, {"restart 1 of 1"});
  CHECK(!fs::exists(program.run_folder().parent_path() / "another"));
  const std::string rows = read_file(program.run_folder() / "metrics.jsonl");
  CHECK(std::count(rows.begin(), rows.end(), '\n') == 200);
  CHECK(rows.find("\"lr\": 0.25") == std::string::npos);
  CHECK(read_file(program.run_folder() / "config.toml").find("1e-3") != std::string::npos);

  replace(program.job(), "name = \"another\"", "name = \"fault\"");
  fs::remove(program.run_folder() / "config.resolved.toml");  // the checkpoint has it, too
  const auto before = files_of(program.run_folder());
  for (const int64_t ranks : {1, 2}) {
    Ended other = program.run(job_words(ranks, sets), environment);
    CAPTURE(other.err);
    check_ended(
        other, 7,
        {"error[E0713]: ", "optimizer.lr = 0.25 (was 0.001)", "set run.name to another name"});
    CHECK((files_of(program.run_folder()) == before));
  }
  // What `validate` passes trains.
  program.verb("validate");
  Ended refused =
      program.run({"--world-size", "2", "--set", "step_scheduler.max_steps=200"}, environment);
  CAPTURE(refused.err);
  check_ended(refused, 7, {"optimizer.lr = 0.25 (was 0.001)"});
  for (const char* set : {"run.seed=4", "dataset.seq_len=16", "optimizer.name=sgd", "lora.r=2"}) {
    CAPTURE(set);
    refused = program.run(
        {"--world-size", "2", "--set", "step_scheduler.max_steps=300", "--set", set}, environment);
    check_ended(refused, 7, {"error[E0713]: "});
  }
  program.verb("train");
  CHECK((files_of(program.run_folder()) == before));
  // How it is asked for is no matter of what was trained.
  replace(program.job(), "lr = 0.25", "lr = 0.001");
  Ended same = program.run(job_words(2, {"step_scheduler.max_steps=200", "checkpoint.keep=5",
                                         "distributed.strategy=ddp", "run.threads=2"}));
  CAPTURE(same.err);
  CHECK(same.code == 0);
  CHECK(same.out.find("this run is finished: ") != std::string::npos);
  CHECK((files_of(program.run_folder()) == before));
  // What an option of the strategy's own does is known to the strategy alone.
  program.verb("validate");
  refused = program.run({"--world-size", "2", "--set", "step_scheduler.max_steps=200", "--set",
                         "distributed.fsdp2.enable_fsdp2_prefetch=true"});
  CAPTURE(refused.err);
  check_ended(refused, 7, {"distributed.fsdp2.enable_fsdp2_prefetch = true (was "});
  // Nor are files that stand where those of the run stood.
  for (const fs::path& file : {weights, tokens}) {
    const std::string whole = read_file(file);
    std::string other = whole;
    other[other.size() - 2] = static_cast<char>(other[other.size() - 2] ^ 1);
    for (const char* verb : {"train", "validate"}) {
      CAPTURE(verb);
      program.verb(verb);
      std::ofstream(file, std::ios::binary) << other;
      refused = program.run({verb == std::string("train") ? "--nproc" : "--world-size", "2",
                             "--set", "step_scheduler.max_steps=200"});
      check_ended(refused, 7,
                  {file == weights ? "from other weights than those in"
                                   : "the files behind them have changed"});
    }
    std::ofstream(file, std::ios::binary) << whole;
  }
  program.verb("train");
  Ended more = program.run(job_words(1, {"step_scheduler.max_steps=202"}));
  CAPTURE(more.err);
  CHECK(more.code == 0);
  CHECK(fs::exists(program.run_folder() / "checkpoints/step_00000202"));
}

TEST_CASE(
    "what a run is made of is what its first attempt found: a restart from the start has the same "
    "config.json though the file is gone, and refuses other data" *
    doctest::test_suite("whole")) {
  for (const bool data : {false, true}) {
    CAPTURE(data);
    Program program;
    const fs::path config = program.copy_model() / "config.json", tokens = program.copy_tokens();
    std::string job = read_file(program.job());
    const size_t at = job.find("pretrained");
    std::ofstream(program.job()) << job.replace(at, job.find('\n', at) - at,
                                                "config = \"" + config.string() + "\"");
    Words restarted = job_words(2, {"step_scheduler.max_steps=60", "checkpoint.every_steps=0",
                                    "dataset.path=" + tokens.string()});
    restarted.insert(restarted.end(), {"--max-restarts", "1"});
    program.start(restarted, {});
    program.wait_for_steps(2);
    const fs::path changed = data ? tokens : config;
    const std::string was = read_file(changed);
    fs::remove(changed);
    if (data) std::ofstream(changed) << std::string(was.rbegin(), was.rend());
    ::kill(program.rank(1), SIGKILL);
    Ended ended = program.wait();
    CAPTURE(ended.err);
    CHECK(ended.says("restart 1 of 1"));
    CHECK(ended.code == (data ? 7 : 0));
    CHECK(ended.says("error[E0713]: the files of the training data of dataset.path changed since "
                     "the first attempt of this run") == data);
    if (!data)
      CHECK(read_file(program.run_folder() / "checkpoints/step_00000060/config.json") == was);
  }
}

TEST_CASE("epochs count what was trained in the batches that it was trained in") {
  Program program;
  auto epochs = [](const std::string& count, const std::string& batch) {
    return job_words(1, {"step_scheduler.max_steps=none", "step_scheduler.epochs=" + count,
                         "step_scheduler.global_batch_size=" + batch,
                         "step_scheduler.local_batch_size=" + batch});
  };
  // 500 samples.
  Ended one = program.run(epochs("1", "100"));
  CAPTURE(one.err);
  REQUIRE(one.code == 0);
  CHECK(fs::exists(program.run_folder() / "checkpoints/step_00000005"));
  Ended two = program.run(epochs("2", "50"));
  CAPTURE(two.err);
  CHECK(two.code == 0);
  const fs::path last = program.run_folder() / "checkpoints/step_00000015";
  REQUIRE(fs::exists(last));
  CHECK(read_file(last / "meta.json").find("\"samples\": 1000") != std::string::npos);
  CHECK(read_file(program.run_folder() / "checkpoints/latest/meta.json") ==
        read_file(last / "meta.json"));
}

}  // namespace given_test
