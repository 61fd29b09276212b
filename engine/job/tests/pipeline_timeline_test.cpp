// The picture of a pipeline's run where there is little room; tests/plans has it whole.
#include "engine/job/render.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace meshwright;

namespace pipeline_timeline_test {
namespace {

PipelineRun run_of(PipelineSchedule schedule, int64_t size, int64_t local, int64_t micro_batches) {
  return simulate_pipeline(make_actions(schedule, size, local, micro_batches));
}

size_t widest(const std::string& text) {
  size_t out = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    out = std::max(out, report::display_width(text.substr(at, end - at)));
    at = end + 1;
  }
  return out;
}

}  // namespace

TEST_CASE("what does not fit goes below, an action at the edge goes on there") {
  const PipelineRun run = run_of(PipelineSchedule::one_f_one_b, 2, 1, 3);
  CHECK(render::draw_timeline({.colour = false, .unicode = false, .width = 24}, run, 0, "0") ==
        "time     0 to 5\n"
        "pp 0 [0] F0 F1 .  .  B0\n"
        "pp 1     .  F0 B0--- F1\n"
        "time     5 to 10\n"
        "pp 0 [0] -- F2 B1--- .\n"
        "pp 1     B1--- F2 B2---\n"
        "time     10 to 12\n"
        "pp 0 [0] B2---\n"
        "pp 1     .  .\n");
}

TEST_CASE("of a long run and of many ranks only some are drawn, never wider than the terminal") {
  for (int width : {40, 80, 120})
    for (int64_t size : {4, 40})
      for (int64_t local : {1, 3}) {
        const PipelineRun run =
            run_of(local == 1 ? PipelineSchedule::one_f_one_b : PipelineSchedule::interleaved_1f1b,
                   size, local, 120);
        const std::string drawn =
            render::draw_timeline({.colour = false, .unicode = true, .width = width}, run, 3, "77");
        CHECK(widest(drawn) <= static_cast<size_t>(width));
        CHECK(std::ranges::count(drawn, '\n') <= 4 * (1 + 8) + 1);
        CHECK(drawn.find("pp 3 [77] ") != std::string::npos);
        CHECK(drawn.find("…") != std::string::npos);
        // The end of the run is there.
        CHECK(drawn.find("B119") != std::string::npos);
        CHECK(drawn.find(" to " + std::to_string(static_cast<int64_t>(run.makespan)) + "\n") !=
              std::string::npos);
      }
}

TEST_CASE("colours change nothing but the colours") {
  const PipelineRun run = run_of(PipelineSchedule::dual_pipe_v, 3, 2, 7);
  const report::Style plain{.colour = false, .unicode = true, .width = 70};
  report::Style coloured = plain;
  coloured.colour = true;
  std::string drawn = render::draw_timeline(coloured, run, 0, "0");
  CHECK(drawn.find("\033[") != std::string::npos);
  for (size_t at = 0; (at = drawn.find('\033', at)) != std::string::npos;)
    drawn.erase(at, drawn.find('m', at) - at + 1);
  CHECK(drawn == render::draw_timeline(plain, run, 0, "0"));
}

}  // namespace pipeline_timeline_test
