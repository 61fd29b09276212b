// Collectives of every axis of a plan, as modules and pipelines call them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/doctor/links.h"
#include "engine/job/plan.h"
#include "meshwright/parallel/group.h"

namespace meshwright::doctor {

// Axes of more than one rank; those that are the same groups under several names are one: "dp_shard
// = dp".
struct AxisGroup {
  std::string names;
  std::vector<int64_t> ranks;  // of this rank's group
};
std::vector<AxisGroup> axes_to_measure(const plan::JobPlan& plan);

// Collective. Of the ranks' figures the largest, so that all go on alike.
double largest(World& world, double mine);

// How large the larger message of each collective may become.
struct MessageLimits {
  int64_t floats = int64_t{256} << 10;
  double seconds = 0.05;  // that one of them may take
  // Above 0: ranks share cores, so many a core. A collective then takes what cores spend on it,
  // since other ranks compute while one waits.
  double ranks_a_core = 0;
  // Without all-to-all, and a message takes the way that it has in a pipeline.
  bool as_pipelines = false;
};

// Collective over the world, all groups of an axis at once. Of each collective what this rank saw;
// the same list on all ranks. `over` as measure_links() has it.
std::vector<Collective> measure_collectives(World& world, const std::vector<AxisGroup>& axes,
                                            const std::function<bool()>& over,
                                            const MessageLimits& limits = {});

// Pairs of ranks that send each other messages, one after the other.

// Collective over the world. Every pair of `members`, which are ranks; all others wait. `over()`
// says on every rank alike, after each round, that there is no more time: the rest is left out.
// Each pair is measured by its first rank, which returns it.
std::vector<Link> measure_links(World& world, const std::vector<int64_t>& members,
                                const std::function<bool()>& over);
// Collective. The clocks of the first of these pairs once more, for their drift.
void measure_clocks_again(World& world, std::vector<Link>& links,
                          const std::vector<int64_t>& members);

}  // namespace meshwright::doctor
