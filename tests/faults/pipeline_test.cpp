// Stages in processes of their own: one that is killed or stopped in the middle of a step is named,
// with the action that waits for it, and a signal to one ends all after the same step.
#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <random>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "program.h"
#include "runs.h"

using namespace faults;

namespace {

const std::vector<std::string> kSchedules = {"1F1B", "ZBVZeroBubble"};

std::vector<std::string> staged(const std::string& schedule,
                                const std::vector<std::string>& more = {}) {
  std::vector<std::string> sets{"distributed.pp_size=2",
                                "distributed.pipeline.pp_schedule=" + schedule,
                                // Three layers make four stages.
                                "distributed.pipeline.first_stage_less_layers=1"},
      out;
  sets.insert(sets.end(), more.begin(), more.end());
  for (const std::string& set : sets) out.insert(out.end(), {"--set", set});
  return out;
}

// Whether the survivor waited in the pipeline; it then says with which action.
bool waited_in_pipeline(const Ended& ended) {
  static const std::regex where(
      "error\\[E060[12]\\]: rank 0[^\\n]* in group pp \\[0, 1\\][^\\n]*, in [0-9]+[FBIW][0-9]+ of "
      "the pipeline, which [a-z ]+\\n");
  return std::regex_search(ended.err, where);
}

void pause(std::mt19937& random) {
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
}

}  // namespace

TEST_CASE("SIGKILL of a stage at any moment: it is named, all end at once") {
  std::mt19937 random(std::random_device{}());
  for (const std::string& schedule : kSchedules)
    for (int64_t victim : {0, 1}) {
      INFO(schedule << ", rank " << victim);
      Program program;
      std::vector<std::string> arguments = staged(schedule);
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
}

TEST_CASE(
    "a stage that is stopped or killed is named by the one that waits, exit status 6, with the "
    "action") {
  std::mt19937 random(std::random_device{}());
  int in_pipeline = 0;
  for (const std::string& schedule : kSchedules)
    for (int signal : {SIGSTOP, SIGKILL}) {
      INFO(schedule);
      CAPTURE(signal);
      const int port = free_port();
      Program zero, one;
      one.share(zero);
      zero.start(staged(schedule), rank_environment(0, 2, port));
      one.start(staged(schedule), rank_environment(1, 2, port));
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
      in_pipeline += waited_in_pipeline(ended) ? 1 : 0;
      ::kill(one.pid(), SIGKILL);
      one.wait();
    }
  CHECK(in_pipeline > 0);
}

TEST_CASE("a signal to a stage that is not the first: all save after the same step and continue") {
  for (const std::string& schedule : kSchedules) {
    INFO(schedule);
    Program program;
    std::vector<std::string> arguments =
        staged(schedule, {"step_scheduler.max_steps=60", "dist_env.timeout_minutes=1"});
    arguments.insert(arguments.end(), {"--nproc", "2"});
    program.start(arguments);
    program.wait_for_steps(5);
    ::kill(program.rank(1), SIGTERM);
    Ended ended = program.wait();
    CAPTURE(ended.out);
    CAPTURE(ended.err);
    CHECK(ended.code == 75);
    std::vector<int64_t> steps = verified_steps(program);
    REQUIRE(!steps.empty());
    CHECK(static_cast<size_t>(steps.back()) == training_rows(program).size());
    CHECK(steps.back() < 60);
    CHECK(ended.out.find("a signal to another rank: saved step " + std::to_string(steps.back())) !=
          std::string::npos);
    Ended again = program.run(arguments);
    CAPTURE(again.err);
    CHECK(again.code == 0);
    const std::vector<std::string> rows = training_rows(program);
    REQUIRE(rows.size() == 60);
    Program unbroken;
    REQUIRE(unbroken.run(arguments).code == 0);
    CHECK(rows == training_rows(unbroken));
  }
}
