#include "pipeline_memory.h"

#include <algorithm>

namespace meshwright::pipeline {

InFlight in_flight(PipelineSchedule schedule, int64_t size, int64_t local, int64_t micro_batches,
                   int64_t rank) {
  // Schedules that go round their stages take so many micro-batches through one before they turn to
  // the next.
  int64_t rounds = std::max<int64_t>(1, micro_batches / size),
          round = (micro_batches + rounds - 1) / rounds;
  int64_t all = 0, ahead = 0;
  if (__builtin_mul_overflow(local, micro_batches, &all)) all = INT64_MAX;
  if (__builtin_mul_overflow(local - 1, round, &ahead)) ahead = all;
  InFlight out;
  switch (schedule) {
    case PipelineSchedule::gpipe:
    case PipelineSchedule::looped_bfs:
      // Every forward comes before the first backward.
      out.passes = all;
      out.logits = micro_batches;
      break;
    case PipelineSchedule::one_f_one_b:
      out.passes = size - rank;
      break;
    case PipelineSchedule::interleaved_1f1b:
      out.passes = ahead + 2 * (size - 1 - rank) + 1;
      break;
    case PipelineSchedule::interleaved_zero_bubble:
      out.passes = ahead + size;
      out.waiting = rank + 1;
      break;
    case PipelineSchedule::zbv_zero_bubble:
      out.passes = 2 * size;
      out.waiting = 2 * rank + 1;
      break;
    case PipelineSchedule::dual_pipe_v:
      out.passes = 2 * size + 1;
      out.waiting = rank + 1;
      break;
  }
  out.passes = std::min(out.passes, all);
  out.waiting = std::min(out.waiting, out.passes);
  return out;
}

}  // namespace meshwright::pipeline
