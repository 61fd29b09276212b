// How long a run is: in steps, or in epochs of its data.
#pragma once

#include <cstdint>
#include <string>

#include "engine/job/plan.h"

namespace meshwright::plan {

// After how many steps each of `samples` has been read at least `epochs` times, when those behind
// `trained`, whose batches may have been others, read `batch` samples each: the sampler goes on
// into the next epoch where the last one is not full. Throws Error(out_of_range) for more than
// there are numbers.
int64_t steps_of_epochs(int64_t epochs, int64_t samples, int64_t batch,
                        const Trained& trained = {});

// "3.1 steps of 8": how many steps of `batch` samples read `samples` once, down to a tenth.
std::string steps_an_epoch(int64_t samples, int64_t batch);

// Sets plan.max_steps, for which the workload must be planned, and says what epochs come to.
// `assumed_world`: that of PlanRequest.
void count_steps(const Job& job, bool assumed_world, JobPlan& plan);

}  // namespace meshwright::plan
