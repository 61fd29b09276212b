// How models of one class are cut into units when the general rule (unit_specs) does not do: a
// registry by class name, and the rule for models whose parameters differ in dtype.
//
//   static const bool known = (register_unit_rule("MyNet", dtype_aware_rule({"*.gate.weight"})),
//   true);   // at start-up
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "meshwright/parallel/sharded_units.h"

namespace meshwright {

struct UnitRequest {
  torch::nn::Module& model;
  const ModelOutline& outline;
  std::optional<bool>
      reshard_after_forward;  // of list items; nullopt: all but the last of their list
  MixedPrecision mp;          // the job's
};

// Local and deterministic: every rank must get the same units. What shard_model() asks of units
// holds for the result.
using UnitRule = std::function<std::vector<UnitSpec>(const UnitRequest&)>;

// For models of this class (ModelOutline::architecture), under every strategy that shards by units.
// Once a process and class; thread-safe. Throws Error(plugin_bad_descriptor) without a name or a
// rule, Error(conflict) when the class has one already.
MESHWRIGHT_API void register_unit_rule(const std::string& architecture, UnitRule rule);
// An empty function when the class has none. Built in: Qwen3_5ForCausalLM and
// DeepseekV4ForCausalLM, which are dtype-aware.
MESHWRIGHT_API UnitRule find_unit_rule(const std::string& architecture);

// Units of one storage and one compute dtype each (spec 4.8). `pinned`: patterns of full parameter
// names (* matches anything) that compute in float32; others of float32 storage compute in the
// job's param dtype. In each unit of unit_specs(): one pair of dtypes, one unit; two, the largest
// modules that hold only the rarer one become units inside it; more, the largest modules of one
// pair each do, and nothing may be left over. Units that compute in float32 by a pin reduce and
// return float32 and take their inputs as they come. Throws Error(bad_module) that names what
// cannot be separated.
MESHWRIGHT_API std::vector<UnitSpec> dtype_aware_units(const UnitRequest& request,
                                                       const std::vector<std::string>& pinned = {});
MESHWRIGHT_API UnitRule dtype_aware_rule(std::vector<std::string> pinned = {});

}  // namespace meshwright
