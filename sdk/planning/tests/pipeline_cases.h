// Pipelines that the tests go through, one after the other.
#pragma once

#include <cstdint>
#include <vector>

#include "sdk/base/pipeline.h"

namespace meshwright::testing {

inline constexpr PipelineSchedule kAllSchedules[] = {
    PipelineSchedule::gpipe,
    PipelineSchedule::one_f_one_b,
    PipelineSchedule::looped_bfs,
    PipelineSchedule::interleaved_1f1b,
    PipelineSchedule::interleaved_zero_bubble,
    PipelineSchedule::zbv_zero_bubble,
    PipelineSchedule::dual_pipe_v,
};

struct PipelineCase {
  PipelineSchedule schedule;
  int64_t size, local, micro_batches;
  PipelineLists lists() const { return make_actions(schedule, size, local, micro_batches); }
};

// 1 to 8 ranks, 1 to 4 stages on each where the schedule allows it, 1 to 24 micro-batches.
inline std::vector<PipelineCase> pipeline_cases() {
  std::vector<PipelineCase> out;
  for (PipelineSchedule schedule : kAllSchedules)
    for (int64_t size = 1; size <= 8; ++size)
      for (int64_t local = 1; local <= 4; ++local)
        for (int64_t micro_batches = 1; micro_batches <= 24; ++micro_batches) {
          const bool v = schedule == PipelineSchedule::zbv_zero_bubble ||
                         schedule == PipelineSchedule::dual_pipe_v;
          if (is_multi_stage(schedule) ? local < 2 || (v && local > 2) : local > 1) continue;
          if (runs_micro_batches(schedule, size, micro_batches))
            out.push_back({schedule, size, local, micro_batches});
        }
  return out;
}

}  // namespace meshwright::testing
