// What wrong gradients are made of that no factor and no axis explains, by other runs of one
// process.
#pragma once

#include <functional>
#include <optional>

#include "apps/prove/running/runs.h"
#include "sdk/kit/comparison/diagnosis.h"

namespace meshwright::prove {

// Trains one process, or the ranks, in float64 otherwise than the job does; nullopt: that did not
// come to its end.
using Again = std::function<std::optional<Run>(const Different&)>;

// The auxiliary losses of experts, so many times what they should be.
std::optional<comparison::Pattern> of_auxiliary(const Run& truth, const Run& ranks,
                                                const Again& again);
// Micro-batches by other weights, by least squares over the gradients of each one alone.
std::optional<comparison::Pattern> of_micro_batches(const Run& truth, const Run& ranks,
                                                    const Again& again);

}  // namespace meshwright::prove
