// How long a pipeline takes when a message needs time too.
#pragma once

#include <span>

#include "sdk/base/pipeline_actions.h"

namespace meshwright::steptime {

// Seconds of a run of the lists. `times`: of each stage; `message`: from one rank to another, which
// neither waits for. Unlike simulate_pipeline() it keeps neither steps nor peaks, which a search
// over many layouts has no use for; with free messages both say the same.
double makespan(const PipelineLists& lists, std::span<const PipelineTimes> times, double message);

// The same of a schedule over many micro-batches: beyond four for each rank the steady part
// repeats, so that two short runs say how long each further one takes.
double makespan(PipelineSchedule schedule, int64_t ranks, int64_t local, int64_t micro_batches,
                std::span<const PipelineTimes> times, double message);

}  // namespace meshwright::steptime
