// Stages in processes of their own: one that is killed is named along a chain, and a signal to one
// ends all after the same step. With the action that waits:
// sdk/parallel/tests/pipeline_runner_test.cpp.
#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "program.h"
#include "runs.h"
#include "sdk/comm/tests/sampled.h"

using namespace faults;

namespace {

Words staged(const std::string& schedule, int64_t ranks, const Words& more) {
  return job_words(ranks,
                   {"distributed.pp_size=2", "distributed.pipeline.pp_schedule=" + schedule,
                    // Three layers make four stages.
                    "distributed.pipeline.first_stage_less_layers=1"},
                   more);
}

}  // namespace

// Each rank of the chain loses the one that ended before it; the first one is what they all name.
TEST_CASE("a stage that is killed at the end of a chain is named by all that wait for each other") {
  const int port = free_port();
  const Words arguments =
      job_words(0, {"distributed.pp_size=3", "distributed.pipeline.pp_schedule=1F1B",
                    "step_scheduler.max_steps=3000"});
  std::vector<Program> ranks(3);
  for (size_t r = 0; r < 3; ++r) {
    if (r > 0) ranks[r].share(ranks[0]);
    ranks[r].start(arguments, rank_environment(static_cast<int64_t>(r), 3, port));
  }
  ranks[0].wait_for_steps(2);
  ::kill(ranks[2].pid(), SIGKILL);
  ranks[2].wait();
  for (size_t r = 0; r < 2; ++r) {
    CAPTURE(r);
    const Ended ended = ranks[r].wait();
    check_ended(ended, 6, {"error[E0602]: rank ", "rank 2"});
  }
}

TEST_CASE("a signal to a stage that is not the first: all save after the same step and continue" *
          doctest::test_suite("whole")) {
  for (const std::string schedule : {"ZBVZeroBubble", "1F1B"}) {
    if (schedule == "1F1B" && !meshwright::all_layouts()) break;
    INFO(schedule);
    Program program;
    const Words arguments =
        staged(schedule, 2, {"step_scheduler.max_steps=60", "dist_env.timeout_minutes=1"});
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
    const Words rows = training_rows(program);
    REQUIRE(rows.size() == 60);
    Program unbroken;
    REQUIRE(unbroken.run(arguments).code == 0);
    CHECK(rows == training_rows(unbroken));
  }
}
