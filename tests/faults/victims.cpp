#include "victims.h"

#include <doctest/doctest.h>

#include <csignal>
#include <thread>

namespace faults {

namespace {

void pause(std::mt19937& random) {
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
}

}  // namespace

void check_killed(std::vector<std::string> arguments, int64_t victim, std::mt19937& random) {
  Program program;
  arguments.insert(arguments.end(), {"--nproc", "2", "--set", "dist_env.timeout_minutes=1"});
  program.start(arguments);
  pid_t pid = program.rank(victim);
  program.wait_for_steps(2);
  pause(random);
  program.mark();
  ::kill(pid, SIGKILL);
  Ended ended = program.wait();
  CAPTURE(ended.err);
  CHECK(ended.code == 137);
  CHECK(ended.says("error[E0505]: rank " + std::to_string(victim) +
                   " was ended by signal 9 (SIGKILL)\n"));
  CHECK(ended.seconds < 10);
}

Ended check_left_alone(std::vector<std::string> arguments, int signal, std::mt19937& random) {
  CAPTURE(signal);
  const int port = free_port();
  // A death is heard of at once. With patience, a machine that is too busy to give rank 1 its turn
  // for some seconds is not taken for a rank that hangs.
  if (signal == SIGKILL) arguments.insert(arguments.end(), {"--set", "dist_env.timeout_minutes=1"});
  Program zero, one;
  one.share(zero);
  zero.start(arguments, rank_environment(0, 2, port));
  one.start(arguments, rank_environment(1, 2, port));
  zero.wait_for_steps(2);
  pause(random);
  zero.mark();
  ::kill(one.pid(), signal);
  Ended ended = zero.wait();
  CAPTURE(ended.err);
  CHECK(ended.code == 6);
  CHECK(ended.seconds < 9);
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
  return ended;
}

}  // namespace faults
