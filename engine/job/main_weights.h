// Main weights that the engine's optimizer keeps beside what a strategy stores
// (optimizer.main_dtype), in a plan.
#pragma once

#include <string>

#include "engine/job/plan.h"

namespace meshwright::plan {

// Of a plan whose footprint, made from `cost`, does not know of them: the bytes of main weights and
// of state in their dtype; notices where main_dtype has no effect, and a warning where the
// optimizer would update weights of 16 bits. Throws Error(conflict) for a dtype that is narrower
// than the stored one, and as check_state() does.
void count_main_weights(JobPlan& plan, const config::Config& config, const ShardingRequest& cost);
// Throws Error(conflict) where the optimizer would keep squares of gradients in float16, in which
// most of them are zero: it would divide by next to nothing.
void check_state(const std::string& optimizer, DType weights);
// What to tell the user where an optimizer updates weights of such a dtype of 16 bits.
std::string narrow_update_warning(const std::string& optimizer, DType weights);

}  // namespace meshwright::plan
