// What a strategy says of the parameters that it runs, before anything is read into them: what the
// engine refuses, and with it the conformance kit.
#pragma once

#include <string>

#include "meshwright/parallel/parallel.h"

namespace meshwright::detail {

// Throws Error(plugin_nonconforming) when a part has not the shape of its region, or is no view of
// what the optimizer updates although it is trained, and when what was planned over tp or cp was
// not done. Local.
MESHWRIGHT_API void check_parts(const ParallelModel& model, const torch::nn::Module& module,
                                const ParallelSizes& sizes, const TpPlan& tp,
                                const std::string& strategy);

}  // namespace meshwright::detail
