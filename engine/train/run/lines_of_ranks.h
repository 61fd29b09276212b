// What the ranks of a job are told at its start, brought together for the one that speaks.
#pragma once

#include <string>
#include <vector>

#include "meshwright/parallel/group.h"

namespace meshwright::train {

// Collective. The lines of rank 0, then those that only other ranks have, each with these ranks:
// "rank 3: ...". A rank of a pipeline knows things of its own stages that rank 0 does not.
std::vector<std::string> lines_of_all_ranks(World& world, const std::vector<std::string>& mine);

}  // namespace meshwright::train
