// The random number generators of a rank, whose states a checkpoint keeps.
#pragma once

#include <ATen/core/Generator.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/job/plan.h"
#include "meshwright/parallel/group.h"

namespace meshwright::train {

// What the generators of the plan's rank are seeded with before a step: the same numbers in every
// run. Ranks with the same tokens draw alike, those with others do not (semantics 13.1).
uint64_t generator_seed(uint64_t seed, int64_t step, const plan::JobPlan& plan);
// The generators of this rank, by device: "cpu", and "cuda" where it trains on one.
std::vector<std::pair<std::string, at::Generator>> generators_of(const World& world);
// A copy of the state, as bytes.
at::Tensor state_of(at::Generator generator);

}  // namespace meshwright::train
