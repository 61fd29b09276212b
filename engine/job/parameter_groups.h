// How each parameter of a model is updated: what [[optimizer.group]] and optimizer.no_decay say.
// Decided once from names and shapes, for the plan and for the run alike.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/config/config.h"
#include "meshwright/outline.h"

namespace meshwright::plan {

// Parameters that are updated alike.
struct UpdateRule {
  double lr_factor = 1, weight_decay = 0;
  bool operator==(const UpdateRule&) const = default;
};

struct ParameterGroups {
  std::vector<UpdateRule> rules;          // distinct; one: all parameters are updated alike
  std::map<std::string, size_t> rule_of;  // of each parameter that trains: the index of its rule
  UpdateRule other;                       // of a parameter that the outline does not list
  std::vector<std::string> frozen;        // by a group, in the outline's order
};

// Marks what a group freezes as not trainable; beside adapters what is frozen and what trains get
// the dtypes that they are stored in (base_dtype.h). What a model freezes by itself stays so.
// `warnings` gets the groups that are of no parameter. Throws Error(conflict) where groups leave
// nothing that trains.
ParameterGroups group_parameters(const config::Config& config, ModelOutline& outline,
                                 std::vector<std::string>& warnings);

}  // namespace meshwright::plan
