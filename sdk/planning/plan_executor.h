// How the running half executes a plan that the planning half has made: it registers itself here
// when it is loaded.
#pragma once

#include <memory>

#include "meshwright/strategy.h"

namespace meshwright::detail {

using PlanExecutor = std::unique_ptr<ParallelModel> (*)(const Strategy&, ParallelizeRequest&);
MESHWRIGHT_API void set_plan_executor(PlanExecutor executor);

}  // namespace meshwright::detail
