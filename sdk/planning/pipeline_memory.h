// What a pipeline rank holds at the fullest moment of a run. Not public.
#pragma once

#include <cstdint>

#include "sdk/base/pipeline_actions.h"

namespace meshwright::pipeline {

using InFlight = PipelinePeak;
// The peak of a rank that runs `local` stages, with `micro_batches` a run, over `size` pipeline
// ranks, counted in its list of actions.
InFlight in_flight(PipelineSchedule schedule, int64_t size, int64_t local, int64_t micro_batches,
                   int64_t rank);

}  // namespace meshwright::pipeline
