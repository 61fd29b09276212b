// Ranks that die, stop, or are told to end: who is named, what the exit status says, and that
// nothing is left.
#include <doctest/doctest.h>
#include <sys/wait.h>

#include <csignal>
#include <list>
#include <random>
#include <thread>

#include "program.h"
#include "sdk/comm/tests/sampled.h"

using namespace faults;

namespace {

const std::string kDdp = "distributed.strategy=ddp", kPatient = "dist_env.timeout_minutes=1";

// SIGSTOP or SIGKILL of rank 1 of two that no launcher watches: rank 0 names it, exit status 6.
void check_left_alone(int signal, std::mt19937& random) {
  CAPTURE(signal);
  const int port = free_port();
  // A death is heard of at once. With patience, a machine that is too busy to give rank 1 its turn
  // for some seconds is not taken for a rank that hangs.
  const Words arguments = job_words(0, signal == SIGKILL ? Words{kPatient} : Words{});
  Program zero, one;
  one.share(zero);
  zero.start(arguments, rank_environment(0, 2, port));
  one.start(arguments, rank_environment(1, 2, port));
  zero.wait_for_steps(2);
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
  zero.mark();
  ::kill(one.pid(), signal);
  Ended ended = zero.wait();
  CAPTURE(ended.err);
  CHECK(ended.code == 6);
  CHECK(ended.seconds < 9);
  CHECK(ended.says("help: "));
  if (signal == SIGSTOP) {
    CHECK(ended.says("error[E0601]: rank 0 waited 3 s in vain for "));
    CHECK(ended.says(" [0, 1]: no word from rank 1"));
  } else {
    CHECK(ended.says("error[E0602]: rank 0: "));
    CHECK(ended.says(" [0, 1] failed: "));
    CHECK(ended.says("rank 1"));
  }
  ::kill(one.pid(), SIGKILL);
  one.wait();
}

}  // namespace

TEST_CASE("SIGKILL of any rank at any moment: it is named, all end at once, exit status 137") {
  std::random_device seed;
  unsigned number = seed();
  CAPTURE(number);
  std::mt19937 random(number);
  const int times = meshwright::all_layouts() ? 8 : 6;
  for (int i = 0; i < times; ++i) {
    // Far above the time a kill may take: nobody may wait for a timeout.
    Words sets = {kPatient};
    if (i % 2) sets.push_back(kDdp);
    auto victim = static_cast<int64_t>(random() % 3);
    bool starting = i >= times - 2;  // the last two before there is any step
    Program program;
    program.start(job_words(3, sets));
    pid_t pid = program.rank(victim);
    program.rank(2);
    if (!starting) program.wait_for_steps(static_cast<int64_t>(1 + random() % 20));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % (starting ? 800000 : 30000)));
    program.mark();
    ::kill(pid, SIGKILL);
    Ended ended = program.wait();
    CAPTURE(victim);
    CAPTURE(ended.err);
    check_ended(
        ended, 137,
        {"error[E0505]: rank " + std::to_string(victim) + " was ended by signal 9 (SIGKILL)\n",
         "help: its output is in ",
         "rank " + std::to_string(victim) + " failed first; all others are ended"});
    CHECK(ended.seconds < 10);
  }
}

TEST_CASE(
    "SIGSTOP of a rank in a step: rank, group and operation are named after the timeout, exit "
    "status 6" *
    doctest::test_suite("whole")) {
  struct Row {
    int64_t victim;
    Words sets;
    const char *group, *shared;
  };
  // Rank 1 of sharded ones, with the verdict: hang_test.cpp.
  for (const Row& row :
       {Row{0, {}, "dp_shard", "1"}, Row{2, {}, "dp_shard", "0"}, Row{1, {kDdp}, "dp", "1"}}) {
    CAPTURE(row.victim);
    INFO(std::string(row.group));
    Program program;
    program.start(job_words(3, row.sets), {{"MESHWRIGHT_SHARED_MEMORY", row.shared}});
    pid_t pid = program.rank(row.victim);
    program.wait_for_steps(3);
    program.mark();
    ::kill(pid, SIGSTOP);
    Ended ended = program.wait();
    CAPTURE(ended.err);
    std::string name = "rank " + std::to_string(row.victim);
    check_ended(ended, 6, {"error[E0601]: rank ", " waited 3 s in vain for "});
    // Losses are summed over all ranks in a group of its own, which may be where they wait.
    CHECK((ended.says(std::string(" in group ") + row.group + " [0, 1, 2]: no word from " + name +
                      "\n") ||
           ended.says(" in group world [0, 1, 2]: no word from " + name + "\n")));
    CHECK(ended.says("help: look at the log of " + name));
    CHECK(ended.says(name + " (process " + std::to_string(pid) + ") is stopped by a signal"));
    CHECK(ended.seconds > 2.5);
    CHECK(ended.seconds < 9);
  }
}

TEST_CASE("SIGSTOP of a rank while the ranks find each other: named, exit status 4 or 6, no hang" *
          doctest::test_suite("whole")) {
  struct Stopped {
    Program program;
    int64_t victim = 0;
    int delay = 0;
    pid_t pid = -1;
  };
  std::list<Stopped> all;  // which wait for their timeouts beside each other
  for (int64_t victim : {0, 1})
    for (int delay : {0, 300}) {
      Stopped& one = all.emplace_back();
      one.victim = victim;
      one.delay = delay;
      one.program.start({"--nproc", "2"});
      one.pid = one.program.rank(victim);
      one.program.rank(1);
      std::this_thread::sleep_for(std::chrono::milliseconds(delay));
      ::kill(one.pid, SIGSTOP);
    }
  for (Stopped& one : all) {
    CAPTURE(one.victim);
    CAPTURE(one.delay);
    // It may be in the middle of writing a file beside its place, and is killed in the end.
    Ended ended = one.program.reap();
    CAPTURE(ended.err);
    CHECK((ended.code == 4 || ended.code == 6));
    CHECK(ended.says(ended.code == 4 ? "error[E0502]" : "error[E0601]"));
    CHECK(ended.says("rank " + std::to_string(one.victim) + " (process " + std::to_string(one.pid) +
                     ") is stopped by a signal"));
    CHECK(ended.says("help: "));
    CHECK(ended.seconds < 30);  // since its own start
  }
}

TEST_CASE("without the launcher a rank whose peer is stopped or killed still names it" *
          doctest::test_suite("whole")) {
  std::mt19937 random(std::random_device{}());
  for (int signal : {SIGSTOP, SIGKILL}) check_left_alone(signal, random);
}

TEST_CASE(
    "Ctrl-C: saved and 75, also when a rank was stopped; before the first step 128 + signal, and "
    "no words about broken connections" *
    doctest::test_suite("whole")) {
  struct Row {
    int signal;
    bool stopped, starting;
    int code;
  };
  for (const Row& row :
       {Row{SIGINT, false, false, 75}, Row{SIGINT, true, false, 75}, Row{SIGTERM, false, true, 143},
        Row{SIGINT, false, true, 130}, Row{SIGHUP, false, true, 129}}) {
    CAPTURE(row.signal);
    CAPTURE(row.stopped);
    Program program;
    program.start(job_words(3, {kPatient}));
    program.rank(2);
    if (!row.starting) program.wait_for_steps(3);
    if (row.stopped) ::kill(program.rank(1), SIGSTOP);
    program.mark();
    ::kill(program.pid(), row.signal);
    Ended ended = program.wait();
    CAPTURE(ended.err);
    check_ended(ended, row.code, {}, {"error["});
    CHECK(ended.says("stopped by signal " + std::to_string(row.signal)) == (row.code != 75));
    CHECK(ended.seconds < 30);
  }
  Program alone;
  alone.start({"--set", kPatient});
  alone.wait_for_steps(2);
  ::kill(alone.pid(), SIGINT);
  CHECK(alone.wait().code == 75);
}

TEST_CASE("SIGKILL of the launcher takes all ranks with it") {
  Program program;
  program.start(job_words(3, {kPatient}));
  program.rank(2);
  program.wait_for_steps(2);
  ::kill(program.pid(), SIGKILL);
  CHECK(program.wait().code == 137);  // looks for processes that are left
}
