// What train finds wrong before any rank starts, and validate says beforehand.
#pragma once

#include "engine/cli/verb.h"
#include "engine/plan/plan.h"

namespace meshwright::cli {

// Looks at the data of the job and holds the memory of `local_ranks` ranks against that of this
// host; nullopt: no rank is about to start here, and where they will is not known, so what one rank
// of the plan needs is only said. Reads data, starts nothing.
Diagnostics check_before_start(const Call& call, const plan::Job& job, const plan::JobPlan& plan,
                               std::optional<int64_t> local_ranks);

}  // namespace meshwright::cli
