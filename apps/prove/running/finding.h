// Where the numbers of ranks turned wrong, and what kind of fault does that.
#pragma once

#include "apps/prove/findings.h"
#include "apps/prove/running/explained.h"
#include "apps/prove/running/runs.h"

namespace meshwright::prove {

// Adds the rows of modules, the picture and the faults, the first place first, and what a plugin's
// model brings of its own. Both runs are in float64, and the other rows are there already. `again`
// is of one process.
void find_fault(const Request& request, const Run& truth, const Run& ranks, const Again& again,
                const Again& ranks_again, Findings& out);

}  // namespace meshwright::prove
