#include "meshwright/parallel/unit_rules.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "meshwright/error.h"
#include "meshwright/parallel/scalar_type.h"
#include "meshwright/tp_plan.h"

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

struct Pair {
  at::ScalarType storage, compute;
  bool pinned;
  auto operator<=>(const Pair&) const = default;
};

// One planned unit that holds several pairs of dtypes.
class Splitter {
 public:
  Splitter(UnitSpec unit, std::function<Pair(const std::pair<std::string, at::Tensor>&)> pair_of)
      : unit_(std::move(unit)), pair_of_(std::move(pair_of)) {}

  // Inner units first, then what is left of the unit, if anything.
  std::vector<UnitSpec> split() {
    std::map<Pair, std::pair<size_t, int64_t>> groups;  // parameters, elements
    for (const auto& parameter : unit_.parameters) {
      auto& [count, elements] = groups[pair_of_(parameter)];
      ++count;
      elements += parameter.second.numel();
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
    std::string prefix = unit_.name == "root" ? "" : unit_.name + ".";
    for (auto& child : unit_.module->named_children())
      visit(prefix + child.key(), *child.value(), only);
    std::map<Pair, std::string> left;
    for (const auto& parameter : unit_.parameters)
      left.emplace(pair_of_(parameter), parameter.first);
    if (left.size() > (groups.size() == 2 ? 1U : 0U)) {
      const auto& [pair, name] = *left.begin();
      throw Error(ErrorCode::bad_module,
                  "parameter " + name + " (" + c10::toString(pair.storage) + ", computes in " +
                      c10::toString(pair.compute) +
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
  void adopt(UnitSpec& unit, const Pair& pair) {
    if (!pair.pinned) return;
    unit.mp = MixedPrecision{DType::float32, DType::float32, DType::float32,
                             /*cast_forward_inputs=*/false};
  }

  // The largest modules that hold one pair only (`only`, if given) become units.
  void visit(const std::string& name, torch::nn::Module& module, const std::optional<Pair>& only) {
    auto below = [&](const auto& parameter) { return parameter.first.starts_with(name + "."); };
    std::optional<Pair> found;
    bool uniform = true;
    for (const auto& parameter : unit_.parameters) {
      if (!below(parameter)) continue;
      Pair pair = pair_of_(parameter);
      uniform = uniform && found.value_or(pair) == pair;
      found = pair;
    }
    if (!found) return;
    if (!uniform) {
      for (auto& child : module.named_children())
        visit(name + "." + child.key(), *child.value(), only);
      return;
    }
    if (only && *found != *only) return;
    UnitSpec inner;
    inner.name = name;
    inner.module = &module;
    inner.reshard_after_forward = unit_.reshard_after_forward;
    inner.module_list = unit_.module_list;
    adopt(inner, *found);
    for (const auto& parameter : unit_.parameters)
      if (below(parameter)) inner.parameters.push_back(parameter);
    std::erase_if(unit_.parameters, below);
    inner_.push_back(std::move(inner));
  }

  UnitSpec unit_;
  std::function<Pair(const std::pair<std::string, at::Tensor>&)> pair_of_;
  std::vector<UnitSpec> inner_;
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

std::vector<UnitSpec> dtype_aware_units(const UnitRequest& request,
                                        const std::vector<std::string>& pinned) {
  at::ScalarType compute = scalar_type(request.mp.param);
  auto pair_of = [&](const std::pair<std::string, at::Tensor>& parameter) {
    bool pin = std::any_of(pinned.begin(), pinned.end(),
                           [&](const std::string& p) { return glob_matches(p, parameter.first); });
    return Pair{parameter.second.scalar_type(), pin ? at::kFloat : compute, pin};
  };
  std::vector<UnitSpec> out;
  for (UnitSpec& unit : unit_specs(request.model, request.outline, request.reshard_after_forward))
    for (UnitSpec& part : Splitter(std::move(unit), pair_of).split())
      out.push_back(std::move(part));
  return out;
}

UnitRule dtype_aware_rule(std::vector<std::string> pinned) {
  return [pinned = std::move(pinned)](const UnitRequest& request) {
    return dtype_aware_units(request, pinned);
  };
}

}  // namespace meshwright
