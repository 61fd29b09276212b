// What a pipeline rank holds at the fullest moment of a run. Not public.
#pragma once

#include <cstdint>

#include "sdk/base/pipeline.h"

namespace meshwright::pipeline {

struct InFlight {
  int64_t passes = 0;   // of one stage and one micro-batch, whose tensors wait for their backward
  int64_t waiting = 0;  // of these, those that have input gradients already and wait for the
                        // weights' (split backward)
  int64_t logits = 1;   // micro-batches whose logits wait on the rank that has the last stage
};
// The peak of a rank that runs `local` stages, with `micro_batches` a run, over `size` pipeline
// ranks.
InFlight in_flight(PipelineSchedule schedule, int64_t size, int64_t local, int64_t micro_batches,
                   int64_t rank);

}  // namespace meshwright::pipeline
