// What a gradient norm counts twice, leaves out, or has of each rank alone.
#pragma once

#include "apps/prove/findings.h"
#include "apps/prove/running/runs.h"

namespace meshwright::prove {

// Adds a fault where the norm is wrong and the gradients are right. The picture has its axes.
void find_norm(const Run& truth, const Run& ranks, Findings& out);

}  // namespace meshwright::prove
