#include "pipeline_memory.h"

#include <algorithm>

#include "pipeline_lists.h"

namespace meshwright::pipeline {

InFlight in_flight(PipelineSchedule schedule, int64_t size, int64_t local, int64_t micro_batches,
                   int64_t rank) {
  // What no plan runs counts as if all forwards came first.
  if (schedule == PipelineSchedule::gpipe || !can_be_listed(1, local, micro_batches) ||
      !runs_micro_batches(schedule, size, micro_batches)) {
    int64_t all = 0;
    if (__builtin_mul_overflow(local, micro_batches, &all)) all = INT64_MAX;
    return {all, 0, micro_batches};
  }
  InFlight peak =
      peak_of(rank_actions(schedule, size, local, micro_batches, rank), size * local - 1);
  peak.logits = std::max<int64_t>(peak.logits, 1);
  return peak;
}

}  // namespace meshwright::pipeline
