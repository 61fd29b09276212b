// What a layout costs: bytes a rank and bytes on each mesh axis, in closed form. docs/cost_model.md
// derives every formula.
//
// All functions are pure and local. They throw Error(rank_out_of_range) for a rank outside the
// mesh, Error(model_does_not_fit) when a dimension cannot be cut as the sizes ask.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/sharding_plan.h"

namespace meshwright {

// Sums of a schedule: one row for each (axis, op); none for groups of one rank.
struct WireRow {
  std::string axis, op;  // as Communication has them
  int64_t count = 0;     // collectives a step
  int64_t bytes = 0;     // bytes a rank sends a step
  // Steps from one time to the next: count and bytes are those of one time.
  int64_t every = 1;
};

struct UnitCost {
  std::string name;
  int64_t parameters = 0;                      // elements, after tp
  int64_t padded_bytes = 0;                    // gathered, in the gather dtype
  bool reshards = false, once_a_step = false;  // gathered again in backward; kept for a step
  int64_t updated = 0;  // elements that this rank's optimizer updates, padding included
  std::shared_ptr<const Later> later = {};
};

struct Footprint {
  std::vector<UnitCost> units;
  std::vector<ParameterPlacement> parameters;
  Bytes bytes;
  CommunicationSchedule schedule;
  std::vector<WireRow> wire;              // wire_of(schedule)
  std::vector<std::string> notices = {};  // of the plan
  std::shared_ptr<const Later> later = {};
};

// The traffic of a schedule.
MESHWRIGHT_API std::vector<WireRow> wire_of(const CommunicationSchedule& schedule);

// What a plan costs on the rank asked about, its own_cost included.
MESHWRIGHT_API Footprint footprint_of(const ShardingRequest& request, const ShardingPlan& plan);

}  // namespace meshwright
