// Two runs of one name: the second is refused and touches nothing, whoever started it; a dead one's
// folder is taken over.
#include <doctest/doctest.h>

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "program.h"

namespace lock_test {

using namespace faults;
namespace fs = std::filesystem;

namespace {

// What a second run must leave as it is.
Words files_of(const fs::path& run) {
  Words out;
  for (const char* name : {"lock", "config.toml", "env.json", "plan.json"})
    out.push_back(read_file(run / name));
  out.emplace_back(fs::exists(run / "checkpoints.1") ? "moved" : "there");
  return out;
}

// A verb on a run that is training.
int status_of(const std::string& words) {
  int status =
      std::system((MESHWRIGHT_BUILD_DIR "/bin/meshwright " + words + " >/dev/null 2>&1").c_str());
  return WEXITSTATUS(status);
}

}  // namespace

TEST_CASE(
    "a second run of a name that is training is refused, started alone, with --nproc, and by a "
    "launcher on every rank" *
    doctest::test_suite("whole")) {
  Program first;
  // None is removed under who reads it.
  first.start(
      {"--nproc", "2", "--set", "checkpoint.every_steps=20", "--set", "checkpoint.keep=1000000"});
  first.wait_for_steps(25);
  Words before = files_of(first.run_folder());
  std::string pid = std::to_string(first.pid()),
              log = read_file(first.run_folder() / "rank_logs/rank_0.log");
  auto check = [&](const Ended& ended) {
    check_ended(ended, 7,
                {"error[E0707]: " + first.run_folder().string() +
                     " belongs to another run: process " + pid + " on ",
                 "set run.name", "-p " + pid});
  };
  for (const Words& arguments : std::vector<Words>{
           {}, {"--nproc", "2"}, {"--nproc", "2", "--set", "checkpoint.resume=none"}}) {
    Program second;
    second.share(first);
    check(second.run(arguments));
  }
  int port = free_port();
  Program ranks[2];
  for (int64_t rank : {0, 1}) {
    ranks[rank].share(first);
    ranks[rank].start({"--set", "dist_env.timeout_minutes=1"}, rank_environment(rank, 2, port));
  }
  for (Program& rank : ranks) check(rank.wait());
  CHECK(files_of(first.run_folder()) == before);
  CHECK(read_file(first.run_folder() / "rank_logs/rank_0.log").starts_with(log));
  // What only reads a run does not ask for its lock.
  for (const std::string& verb :
       {std::string("checkpoint ls "),
        std::string("checkpoint export --out ") + (first.folder() / "hf").string() + " "})
    CHECK(status_of(verb + first.run_folder().string()) == 0);
  CHECK(status_of("generate " + first.run_folder().string() + " --tokens 1,2 --max-new 2") == 0);
  ::kill(first.pid(), SIGTERM);
  Ended ended = first.wait();
  CHECK(ended.code == 75);
  CHECK(!fs::exists(first.run_folder() / "lock"));
}

TEST_CASE("the folder of a run that was killed is taken over, which run.log tells") {
  for (bool alone : {true, false}) {
    Program program;
    program.start(job_words(alone ? 0 : 2));
    program.wait_for_steps(3);
    std::string pid = std::to_string(program.pid());
    ::kill(program.pid(), SIGKILL);
    program.reap();
    CHECK(fs::exists(program.run_folder() / "lock"));
    Ended ended = program.run(job_words(alone ? 0 : 2, {"step_scheduler.max_steps=4"}));
    CAPTURE(ended.err);
    CHECK(ended.code == 0);
    CHECK(read_file(program.run_folder() / "run.log")
              .find("the run before, process " + pid + " on ") != std::string::npos);
    CHECK(!fs::exists(program.run_folder() / "lock"));
  }
}

TEST_CASE("a sibling of a launcher that is not recognised is told that each process trains alone") {
  Program first, second;
  first.start({});
  first.wait_for_steps(2);
  second.share(first);
  Ended ended = second.run({}, {{"JOB_COMPLETION_INDEX", "1"}});
  check_ended(ended, 4,
              {"error[E0507]: ", "JOB_COMPLETION_INDEX = 1",
               " belongs to another run: process " + std::to_string(first.pid())});
}

TEST_CASE("a folder is held over restarts: no second run slips in between" *
          doctest::test_suite("whole")) {
  Program first;
  first.start({"--nproc", "2", "--max-restarts", "3", "--set", "checkpoint.every_steps=5"});
  first.wait_for_steps(8);
  std::string lock = read_file(first.run_folder() / "lock");
  CHECK(!lock.empty());
  ::kill(first.rank(1), SIGKILL);
  for (int i = 0; i < 3; ++i) {
    Program second;
    second.share(first);
    CHECK(second.run({}).code == 7);
  }
  CHECK(read_file(first.run_folder() / "lock") == lock);
}

}  // namespace lock_test
