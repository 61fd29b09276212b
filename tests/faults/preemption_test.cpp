// Told to end, killed and started again, by our launcher and by torchrun: nothing is lost, and the
// end is that of an unbroken run.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "runs.h"
#include "sdk/comm/tests/sampled.h"

using namespace faults;
using meshwright::all_layouts;
namespace fs = std::filesystem;

namespace {

// Steps enough that the signal comes before the end, however slow this harness is.
const Layout kLong = [] {
  Layout layout;
  layout.steps = 100;
  layout.every = 30;
  return layout;
}();

std::vector<pid_t> children_of(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children");
  return {std::istream_iterator<pid_t>(in), {}};
}

}  // namespace

TEST_CASE(
    "Ctrl-C, SIGHUP, SIGTERM or SIGUSR1, to the launcher, to one rank or to all: saved, exit "
    "status 75, and the same command continues" *
    doctest::test_suite("whole")) {
  struct Row {
    const char* what;
    int signal;
    int64_t to;  // a rank; -1: the launcher; -2: it and all ranks, as a batch system does
    const char* strategy;
    bool background = false, sample = false;  // the others only with all layouts
    int64_t ranks = 2;
  };
  for (const Row& row :
       {Row{"SIGTERM to the launcher", SIGTERM, -1, "fsdp2", false, true},
        Row{"SIGUSR1 to the launcher", SIGUSR1, -1, "ddp", true},
        Row{"SIGUSR1 to rank 1", SIGUSR1, 1, "fsdp2", false, true},
        Row{"SIGTERM to everyone", SIGTERM, -2, "ddp"}, Row{"Ctrl-C", SIGINT, -1, "ddp", true},
        Row{"SIGINT to everyone", SIGINT, -2, "ddp", false, true},
        Row{"SIGHUP to the launcher", SIGHUP, -1, "ddp", true, true},
        Row{"SIGTERM to one process", SIGTERM, -1, "fsdp2", false, false, 1},
        Row{"Ctrl-C of one process", SIGINT, -1, "fsdp2", false, true, 1},
        Row{"SIGHUP to one process", SIGHUP, -1, "fsdp2", false, false, 1}}) {
    if (!row.sample && !all_layouts()) continue;
    INFO(std::string(row.what));
    Layout layout = kLong;
    layout.strategy = row.strategy;
    layout.background = row.background;
    layout.ranks = row.ranks;
    Program program;
    program.start(layout.arguments());
    program.wait_for_steps(10);
    if (row.to == -2)
      for (int64_t rank : {0, 1}) ::kill(program.rank(rank), row.signal);
    ::kill(row.to >= 0 ? program.rank(row.to) : program.pid(), row.signal);
    Ended ended = program.wait();
    CAPTURE(ended.out);
    CAPTURE(ended.err);
    CHECK(ended.code == 75);
    CHECK(ended.err == (row.signal == SIGINT
                            ? "SIGINT: saving after this step; Ctrl-C again ends at once\n"
                            : ""));
    std::vector<int64_t> steps = verified_steps(program);
    REQUIRE(!steps.empty());
    CHECK(static_cast<size_t>(steps.back()) == training_rows(program).size());
    CHECK(steps.back() < layout.steps);
    std::string name =
        row.to > 0 ? "a signal to another rank" : std::string("SIG") + ::sigabbrev_np(row.signal);
    CHECK(ended.out.find(
              name + ": saved step " + std::to_string(steps.back()) +
              " of 100, ending; the same command goes on from there\n  " MESHWRIGHT_BUILD_DIR
              "/bin/meshwright train " +
              program.job().string() + " --nproc " + std::to_string(row.ranks) +
              " --set distributed.strategy=" + layout.strategy) != std::string::npos);
    continue_and_compare(program, layout);
  }
}

TEST_CASE(
    "a request that comes in the middle of a matrix product writes into none of its operands") {
  for (const char* ranks : {"1", "2"}) {
    CAPTURE(ranks);
    Program program;
    program.start({"--nproc", ranks, "--set", "dataset.kind=mock", "--set", "dataset.seq_len=1024",
                   "--set", "step_scheduler.local_batch_size=3"});
    program.wait_for_steps(2);
    // Many, within the time in which they are one request: one of them met a product in every run.
    const pid_t rank = *ranks == '1' ? program.pid() : program.rank(1);
    using Clock = std::chrono::steady_clock;
    for (const auto end = Clock::now() + std::chrono::milliseconds(120); Clock::now() < end;) {
      ::kill(rank, SIGTERM);
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
    const Ended ended = program.wait();
    CAPTURE(ended.err);
    CHECK(ended.code == 75);
  }
}

TEST_CASE("a terminal that goes away takes nothing with it: saved, although nobody can be told" *
          doctest::test_suite("whole")) {
  for (int64_t ranks : {1, 2}) {
    Layout layout = kLong;
    layout.ranks = ranks;
    Program program;
    int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    REQUIRE(terminal >= 0);
    REQUIRE(::grantpt(terminal) == 0);
    REQUIRE(::unlockpt(terminal) == 0);
    program.start(layout.arguments(), {}, ::ptsname(terminal));
    program.wait_for_steps(10);
    ::close(terminal);  // writing now fails with EIO
    ::kill(program.pid(), SIGHUP);
    ::kill(program.pid(), SIGHUP);
    Ended ended = program.wait();
    CAPTURE(ended.err);
    CHECK(ended.code == 75);
    continue_and_compare(program, layout);
  }
}

TEST_CASE("under nohup a terminal that goes away ends nothing") {
  for (int64_t ranks : {1, 2}) {
    Program program;
    program.launcher({"nohup"});
    program.start({"--nproc", std::to_string(ranks)});
    program.wait_for_steps(5);
    ::kill(program.pid(), SIGHUP);
    if (ranks == 2) ::kill(program.rank(1), SIGHUP);
    program.wait_for_steps(30);
    ::kill(program.pid(), SIGINT);
    CHECK(program.wait().code == 75);
  }
}

TEST_CASE("before the first step a first signal ends at once: there is nothing to save") {
  for (int64_t ranks : {1, 2}) {
    Program program;
    // Rank 0 has the folder and hangs before it trains.
    program.start(
        {"--nproc", std::to_string(ranks)},
        failing(program.run_folder(), "rename", 1, "hang", {}, program.folder() / "shim.log"));
    for (int i = 0; i < 3000 && !fs::exists(program.folder() / "shim.log"); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    REQUIRE(fs::exists(program.folder() / "shim.log"));
    program.mark();
    ::kill(program.pid(), SIGINT);
    Ended ended = program.reap();
    CHECK(ended.code == 130);
    CHECK(ended.seconds < 5);
  }
}

TEST_CASE("a second signal ends at once, also in the middle of a save that hangs") {
  for (int64_t ranks : {1, 2}) {
    int signal = ranks == 1 ? SIGINT : SIGTERM;
    Layout layout = kLong;
    layout.ranks = ranks;
    layout.every = 0;
    Program program;
    fs::path log = program.folder() / "shim.log";
    program.start(layout.arguments({"--set", "step_scheduler.max_steps=1000000"}),
                  failing(checkpoint_folder(program), "fsync", 1, "hang", {}, log));
    program.wait_for_steps(5);
    ::kill(program.pid(), signal);
    for (int i = 0; i < 1000 && !fs::exists(log); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::this_thread::sleep_for(
        std::chrono::milliseconds(400));  // no request told twice, another one
    program.mark();
    ::kill(program.pid(), signal);
    Ended ended = program.reap();
    CAPTURE(ended.err);
    CHECK(fs::exists(log));
    CHECK(ended.code == 128 + signal);
    CHECK(ended.seconds < 3);
    CHECK(verified_steps(program).empty());
  }
}

TEST_CASE("train --max-restarts: a killed rank is no end, and the end is that of an unbroken run") {
  for (int64_t ranks : {1, 2}) {
    Layout layout = kLong;
    layout.ranks = ranks;
    layout.strategy = ranks == 2 ? "ddp" : "fsdp2";
    Program program;
    program.start(layout.arguments({"--max-restarts", "2"}));
    for (int i = 0; i < 2; ++i) {
      program.wait_for_steps(20 + 35 * i);
      ::kill(program.rank(i % ranks), SIGKILL);
      // The next attempt begins where the newest checkpoint is.
      std::this_thread::sleep_for(std::chrono::milliseconds(600));
    }
    Ended ended = program.wait(120);
    CAPTURE(ended.out);
    CAPTURE(ended.err);
    check_ended(ended, 0,
                {"restart 1 of 2 after rank 0 was ended by signal 9 (SIGKILL), ",
                 "restart 2 of 2 after rank " + std::to_string(ranks - 1) +
                     " was ended by signal 9 (SIGKILL), from step_00000030"});
    CHECK(training_rows(program) == unbroken_rows(layout));
    CHECK(verified_steps(program).back() == layout.steps);
  }
}

TEST_CASE("--max-restarts under a launcher is refused: its restarts are the launcher's") {
  Program program;
  Ended ended = program.run({"--max-restarts", "1"}, rank_environment(0, 1, 1));
  check_ended(ended, 2, {"torchrun --max-restarts 1"});
}

TEST_CASE(
    "torchrun --max-restarts: its restart continues from the newest checkpoint; its SIGTERM "
    "saves" *
    doctest::test_suite("whole")) {
  const char* path = std::getenv("PYTHONPATH");
  ::setenv("PYTHONPATH",
           (std::string(MESHWRIGHT_PYTHON_DIR) + (path ? ":" + std::string(path) : "")).c_str(), 1);
  if (std::system("python3 -c 'import torch.distributed.run' 2>/dev/null >&2") != 0) {
    MESSAGE("Skipped: torchrun does not start with this Python");
    return;
  }
  Layout layout = kLong;
  layout.strategy = "ddp";
  Program program;
  program.launcher({"python3", "-m", "torch.distributed.run", "--no-python", "--nproc-per-node",
                    "2", "--max-restarts", "1", "--monitor-interval", "0.1"});
  Words arguments = layout.arguments();
  arguments.erase(arguments.begin(), arguments.begin() + 2);  // --nproc 2
  program.start(arguments);
  program.wait_for_steps(5);
  ::kill(program.pid(), SIGTERM);  // it passes that on, and ends by itself
  Ended ended = program.wait(120);
  CAPTURE(ended.out);
  CAPTURE(ended.err);
  CHECK(ended.code != 0);
  std::vector<int64_t> saved = verified_steps(program);
  REQUIRE(saved.size() == 1);
  CHECK(ended.out.find("SIGTERM: saved step " + std::to_string(saved[0]) + " of 100, ending") !=
        std::string::npos);
  program.start(arguments);
  program.wait_for_steps(saved[0] + 45);
  std::vector<pid_t> workers = children_of(program.pid());
  REQUIRE(workers.size() == 2);
  ::kill(workers[1], SIGKILL);
  ended = program.wait(120);
  CHECK(ended.code == 0);
  CHECK(ended.out.find("continues after step " + std::to_string(saved[0]) + ": ") !=
        std::string::npos);
  // The second attempt from a checkpoint that the first has made.
  size_t first = ended.out.find("continues after step "),
         second = ended.out.find("continues after step ", first + 1);
  REQUIRE(second != std::string::npos);
  CHECK(std::stoll(ended.out.substr(second + 21)) % layout.every == 0);
  CHECK(training_rows(program) == unbroken_rows(layout));
  CHECK(verified_steps(program).back() == layout.steps);
}
