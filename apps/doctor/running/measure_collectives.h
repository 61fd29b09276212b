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

}  // namespace meshwright::doctor
