// The proof itself: the shrunk job on ranks that are threads, beside one process.
#pragma once

#include "apps/prove/findings.h"

namespace meshwright::prove {

// Runs both in this process. What ends a rank is among the findings.
Findings prove(const Request& request);

}  // namespace meshwright::prove
