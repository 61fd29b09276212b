// A few numbers of each rank, and the largest of each among all ranks.
#pragma once

#include <vector>

#include "meshwright/parallel/group.h"

namespace meshwright::train {

// Collective. As many on every rank, none of them NaN. On a device the host waits once, for all
// that was started.
std::vector<double> largest_of_ranks(World& world, const std::vector<double>& mine);

}  // namespace meshwright::train
