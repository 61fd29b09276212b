// The random number generators of a rank, whose states a checkpoint keeps.
#pragma once

#include <ATen/core/Generator.h>

#include <string>
#include <utility>
#include <vector>

#include "meshwright/parallel/group.h"

namespace meshwright::train {

// The generators of this rank, by device: "cpu", and "cuda" where it trains on one.
std::vector<std::pair<std::string, at::Generator>> generators_of(const World& world);
// A copy of the state, as bytes.
at::Tensor state_of(at::Generator generator);

}  // namespace meshwright::train
