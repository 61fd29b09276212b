#include "meshwright/unit_rules.h"

#include <algorithm>
#include <compare>
#include <map>
#include <mutex>

#include "footprint_parts.h"
#include "meshwright/error.h"
#include "meshwright/tp_plan.h"
#include "sdk/base/text.h"

namespace meshwright {

namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, UnitRule> rules{{"Qwen3_5ForCausalLM", dtype_aware_rule()},
                                        {"DeepseekV4ForCausalLM", dtype_aware_rule()}};
};

Registry& registry() {
  static Registry kept;
  return kept;
}

// What a parameter is stored and computed in.
struct Pair {
  DType storage, compute;
  bool pinned;
  auto operator<=>(const Pair&) const = default;
};

// One planned unit that holds several pairs of dtypes.
class Splitter {
 public:
  Splitter(const ModelOutline& outline, PlannedUnit unit, std::function<Pair(size_t)> pair_of)
      : outline_(outline), unit_(std::move(unit)), pair_of_(std::move(pair_of)) {}

  // Inner units first, then what is left of the unit, if anything.
  std::vector<PlannedUnit> split() {
    std::map<Pair, std::pair<size_t, int64_t>> groups;  // parameters, elements
    for (size_t p : unit_.parameters) {
      auto& [count, elements] = groups[pair_of_(p)];
      ++count;
      elements = footprint::plus(elements, element_count(outline_.parameters[p].shape));
    }
    if (groups.size() <= 1) {
      if (!groups.empty()) adopt(unit_, groups.begin()->first);
      return {unit_};
    }
    std::optional<Pair> only;
    if (groups.size() == 2)
      only = std::min_element(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
               return a.second < b.second;
             })->first;
    for (const ModuleOutline* child : children_of(unit_.module)) visit(*child, only);
    std::map<Pair, std::string> left;
    for (size_t p : unit_.parameters) left.emplace(pair_of_(p), outline_.parameters[p].name);
    if (left.size() > (groups.size() == 2 ? 1U : 0U)) {
      const auto& [pair, name] = *left.begin();
      throw Error(ErrorCode::bad_module,
                  "parameter " + name + " (" + std::string(dtype_name(pair.storage)) +
                      ", computes in " + std::string(dtype_name(pair.compute)) +
                      ") shares its module with parameters of other dtypes, so unit \"" +
                      unit_.name + "\" cannot be cut into units of one dtype")
          .help("put parameters of different dtypes into modules of their own");
    }
    if (!left.empty()) {
      adopt(unit_, left.begin()->first);
      inner_.push_back(std::move(unit_));
    }
    return std::move(inner_);
  }

 private:
  static void adopt(PlannedUnit& unit, const Pair& pair) {
    if (!pair.pinned) return;
    unit.mp = MixedPrecision{DType::float32, DType::float32, DType::float32,
                             /*cast_forward_inputs=*/false};
  }

  std::vector<const ModuleOutline*> children_of(std::string_view module) const {
    std::vector<const ModuleOutline*> out;
    for (const ModuleOutline& other : outline_.modules)
      if (!other.name.empty() && module_of(other.name) == module) out.push_back(&other);
    return out;
  }

  // The largest modules that hold one pair only (`only`, if given) become units.
  void visit(const ModuleOutline& module, const std::optional<Pair>& only) {
    auto below = [&](size_t p) {
      return outline_.parameters[p].name.starts_with(module.name + ".");
    };
    std::optional<Pair> found;
    bool uniform = true;
    for (size_t p : unit_.parameters) {
      if (!below(p)) continue;
      Pair pair = pair_of_(p);
      uniform = uniform && found.value_or(pair) == pair;
      found = pair;
    }
    if (!found) return;
    if (!uniform) {
      for (const ModuleOutline* child : children_of(module.name)) visit(*child, only);
      return;
    }
    if (only && *found != *only) return;
    PlannedUnit inner{module.name};
    inner.module = module.name;
    inner.reshard_after_forward = unit_.reshard_after_forward;
    inner.module_list = unit_.module_list;
    adopt(inner, *found);
    std::copy_if(unit_.parameters.begin(), unit_.parameters.end(),
                 std::back_inserter(inner.parameters), below);
    std::erase_if(unit_.parameters, below);
    inner_.push_back(std::move(inner));
  }

  const ModelOutline& outline_;
  PlannedUnit unit_;
  std::function<Pair(size_t)> pair_of_;
  std::vector<PlannedUnit> inner_;
};

}  // namespace

void register_unit_rule(const std::string& architecture, UnitRule rule) {
  if (architecture.empty() || !rule)
    throw Error(ErrorCode::plugin_bad_descriptor,
                architecture.empty() ? "a unit rule needs the class name of its models"
                                     : "the unit rule of " + architecture + " is empty")
        .help("register_unit_rule(\"MyNet\", [](const UnitRequest& request) { ... })");
  std::lock_guard lock(registry().mutex);
  if (!registry().rules.emplace(architecture, std::move(rule)).second)
    throw Error(ErrorCode::conflict,
                "models of class " + architecture + " have a unit rule already")
        .help("register one rule a class, once in the process");
}

UnitRule find_unit_rule(const std::string& architecture) {
  std::lock_guard lock(registry().mutex);
  auto found = registry().rules.find(architecture);
  return found == registry().rules.end() ? UnitRule() : found->second;
}

std::vector<PlannedUnit> dtype_aware_units(const UnitRequest& request,
                                           const std::vector<std::string>& pinned) {
  auto pair_of = [&](size_t p) {
    const ParameterOutline& parameter = request.outline.parameters[p];
    bool pin = std::any_of(pinned.begin(), pinned.end(), [&](const std::string& pattern) {
      return glob_matches(pattern, parameter.name);
    });
    return Pair{parameter.dtype, pin ? DType::float32 : request.mp.param, pin};
  };
  std::vector<PlannedUnit> out;
  for (PlannedUnit& unit : plan_units(request.outline, request.reshard_after_forward))
    for (PlannedUnit& part : Splitter(request.outline, std::move(unit), pair_of).split())
      out.push_back(std::move(part));
  return out;
}

UnitRule dtype_aware_rule(std::vector<std::string> pinned) {
  return [pinned = std::move(pinned)](const UnitRequest& request) {
    return dtype_aware_units(request, pinned);
  };
}

}  // namespace meshwright
