// Pairs of ranks that send each other messages, one after the other.
#pragma once

#include <functional>
#include <vector>

#include "apps/doctor/links.h"
#include "meshwright/parallel/group.h"

namespace meshwright::doctor {

// Collective over the world. Every pair of `members`, which are ranks; all others wait. `over()`
// says on every rank alike, after each round, that there is no more time: the rest is left out.
// Each pair is measured by its first rank, which returns it.
std::vector<Link> measure_links(World& world, const std::vector<int64_t>& members,
                                const std::function<bool()>& over);
// Collective. The clocks of the first of these pairs once more, for their drift.
void measure_clocks_again(World& world, std::vector<Link>& links,
                          const std::vector<int64_t>& members);

}  // namespace meshwright::doctor
