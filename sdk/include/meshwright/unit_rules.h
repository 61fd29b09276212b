// How models of one class are cut into units when the general rule (plan_units) does not do: a
// registry by class name, and the rule for models whose parameters differ in dtype.
//
//   register_unit_rule("MyNet", dtype_aware_rule({"*.gate.weight"}));  // at start-up
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/sharding_plan.h"

namespace meshwright {

struct UnitRequest {
  const ModelOutline& outline;
  // Of list items; nullopt: all but the last of their list.
  std::optional<bool> reshard_after_forward;
  MixedPrecision mp;  // the job's
  std::shared_ptr<const Later> later = {};
};

// Pure: every rank must get the same units, the root last. Together they hold each parameter once.
using UnitRule = std::function<std::vector<PlannedUnit>(const UnitRequest&)>;

// For models of this class (ModelOutline::architecture), under every strategy that shards by rows.
// Once a process and class; thread-safe. Throws Error(plugin_bad_descriptor) without a name or a
// rule, Error(conflict) when the class has one already.
MESHWRIGHT_API void register_unit_rule(const std::string& architecture, UnitRule rule);
// An empty function when the class has none. Built in: Qwen3_5ForCausalLM and
// DeepseekV4ForCausalLM, which are dtype-aware.
MESHWRIGHT_API UnitRule find_unit_rule(const std::string& architecture);

// Units of one storage and one compute dtype each (semantics 3.5). `pinned`: patterns of full
// parameter names (* matches anything) that compute in float32; others of float32 storage compute
// in the job's param dtype. In each unit of plan_units(): one pair of dtypes, one unit; two, the
// largest modules that hold only the rarer one become units inside it; more, the largest modules of
// one pair each do, and nothing may be left over. Units that compute in float32 by a pin reduce and
// return float32 and take their inputs as they come. Throws Error(bad_module) that names what
// cannot be separated.
MESHWRIGHT_API std::vector<PlannedUnit> dtype_aware_units(
    const UnitRequest& request, const std::vector<std::string>& pinned = {});
MESHWRIGHT_API UnitRule dtype_aware_rule(std::vector<std::string> pinned = {});

}  // namespace meshwright
