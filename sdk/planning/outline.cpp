#include "meshwright/outline.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <compare>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <utility>

#include "footprint_parts.h"
#include "meshwright/error.h"
#include "meshwright/model/model_family.h"
#include "meshwright/tp_plan.h"
#include "meshwright/unit_rules.h"
#include "sdk/base/checks.h"
#include "sdk/base/low_rank.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/text.h"

namespace meshwright {

const ModuleOutline* ModelOutline::find_module(std::string_view name) const {
  for (const ModuleOutline& module : modules)
    if (module.name == name) return &module;
  return nullptr;
}

const ParameterOutline* ModelOutline::find_parameter(std::string_view name) const {
  for (const ParameterOutline& parameter : parameters)
    if (parameter.name == name) return &parameter;
  return nullptr;
}

InitialValue ModelOutline::initial_value(std::string_view parameter) const {
  if (const ParameterOutline* known = find_parameter(parameter); known != nullptr && known->init)
    return *known->init;
  if (parameter.ends_with(".bias") || parameter == "bias") return {InitialValue::Kind::constant, 0};
  const ModuleOutline* module = find_module(module_of(parameter));
  if (module != nullptr && module->kind == ModuleKind::norm)
    return {InitialValue::Kind::constant, 1};
  return {};
}

std::string_view module_of(std::string_view parameter) {
  size_t dot = parameter.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : parameter.substr(0, dot);
}

int64_t element_count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (int64_t size : shape)
    if (__builtin_mul_overflow(count, size, &count))
      throw Error(ErrorCode::bad_model_config,
                  "a parameter has more elements than 64 bits can count");
  return count;
}

namespace {

// Sizes are counted in int64.
constexpr int64_t kMostElements = int64_t{1} << 48;

std::string problem_of_shape(const ParameterOutline& p) {
  int64_t elements = 1;
  for (const int64_t size : p.shape) {
    if (size <= 0) return "the shape of " + p.name + " has a size that is not above 0";
    if (size > kMostElements / elements)
      return "the shape of " + p.name + " has more than 2^48 elements";
    elements *= size;
  }
  if (!p.fused) return "";
  int64_t rows = 0;
  for (const int64_t part : p.fused->parts) rows += part * p.fused->groups;
  if (!p.shape.empty() && rows == p.shape.front()) return "";
  return "the fused parts of " + p.name + " have " + std::to_string(rows) +
         " rows, the parameter " + std::to_string(p.shape.empty() ? 0 : p.shape.front());
}

std::string problem_of_init(const ParameterOutline& p) {
  if (!p.init) return "";
  const InitialValue& v = *p.init;
  const bool spread = v.kind != InitialValue::Kind::constant;
  if (v.kind > InitialValue::Kind::uniform || !std::isfinite(v.value) || (spread && v.value < 0))
    return "the initial value of " + p.name + " is " + text::format("%f", v.value) +
           (spread && v.value < 0 ? ", below 0" : "");
  if (v.zero_row && (p.shape.empty() || *v.zero_row < 0 || *v.zero_row >= p.shape.front()))
    return p.name + " has no row " + std::to_string(*v.zero_row) + " that could begin as zeros";
  return "";
}

}  // namespace

void OutlineBuilder::module(const std::string& name, ModuleKind kind,
                            const std::string& class_name) {
  outline.modules.push_back({name, kind, class_name});
}

ParameterOutline& OutlineBuilder::parameter(const std::string& name, std::vector<int64_t> shape) {
  element_count(shape);  // refuses what 64 bits cannot count
  return outline.parameters.emplace_back(ParameterOutline{name, std::move(shape), storage_});
}

void OutlineBuilder::linear(const std::string& name, int64_t in, int64_t out, bool bias) {
  module(name, ModuleKind::linear, "Linear");
  parameter(name + ".weight", {out, in});
  if (bias) parameter(name + ".bias", {out});
}

void OutlineBuilder::fused_linear(const std::string& name, int64_t in, const FusedRows& rows,
                                  bool bias) {
  const size_t first = outline.parameters.size();
  linear(name, in, rows.groups * std::accumulate(rows.parts.begin(), rows.parts.end(), int64_t{0}),
         bias);
  for (size_t i = first; i < outline.parameters.size(); ++i) outline.parameters[i].fused = rows;
}

void OutlineBuilder::embedding(const std::string& name, int64_t rows, int64_t width,
                               const std::string& class_name) {
  module(name, ModuleKind::embedding, class_name);
  parameter(name + ".weight", {rows, width});
}

void OutlineBuilder::norm(const std::string& name, int64_t width, const std::string& class_name,
                          bool bias) {
  module(name, ModuleKind::norm, class_name);
  outline.modules.back().width = width;
  parameter(name + ".weight", {width});
  if (bias) parameter(name + ".bias", {width});
}

std::vector<std::string> problems_of(const ModelOutline& o) {
  std::vector<std::string> out;
  auto positive = [&](const char* what, int64_t value) {
    if (value <= 0) out.push_back(std::string(what) + " is " + std::to_string(value));
  };
  if (o.architecture.empty()) out.emplace_back("architecture is empty");
  positive("hidden_size", o.hidden_size);
  positive("vocab_size", o.vocab_size);
  if (o.layers < 0) positive("layers", o.layers);
  if (o.attention_heads > 0 && o.key_value_heads > 0 && o.attention_heads % o.key_value_heads != 0)
    out.push_back("attention_heads (" + std::to_string(o.attention_heads) +
                  ") is no multiple of key_value_heads (" + std::to_string(o.key_value_heads) +
                  ")");
  if (o.positions_end && o.max_positions <= 0)
    out.emplace_back("positions_end without max_positions: no sample could be short enough");
  if (o.modules.empty() || !o.modules.front().name.empty())
    out.emplace_back("its first module is not the model itself, whose name is empty");
  if (o.parameters.empty()) out.emplace_back("it has no parameters");
  std::set<std::string_view> modules, parameters;
  for (const ModuleOutline& m : o.modules) {
    if (m.width < 0) positive(("the width of " + m.name).c_str(), m.width);
    if (const std::string_view parent = module_of(m.name);
        !m.name.empty() && !modules.contains(parent))
      out.push_back("the module " + m.name + " stands before \"" + std::string(parent) +
                    "\", which has it");
    if (!modules.insert(m.name).second) out.push_back("two modules are called " + m.name);
  }
  for (const ParameterOutline& p : o.parameters) {
    if (p.name.empty() || p.name.ends_with('.')) out.emplace_back("a parameter has no name");
    if (!parameters.insert(p.name).second) out.push_back("two parameters are called " + p.name);
    if (!modules.contains(module_of(p.name)))
      out.push_back("no module of the outline has the parameter " + p.name);
    for (std::string bad : {problem_of_shape(p), problem_of_init(p)})
      if (!bad.empty()) out.push_back(std::move(bad));
  }
  return out;
}

namespace footprint {

// Adapters beside a frozen base: units of their own.

bool trains_beside(const ModelOutline& outline, const std::vector<size_t>& parameters) {
  int64_t trained = 0, frozen = 0;  // elements, as the model has them: alike on all ranks
  bool adapts = false;
  for (size_t p : parameters) {
    const ParameterOutline& parameter = outline.parameters[p];
    int64_t& elements = parameter.trainable ? trained : frozen;
    elements = plus(elements, element_count(parameter.shape));
    adapts = adapts || (parameter.trainable && low_rank_factor(parameter.name));
  }
  return adapts && trained < frozen;
}

void part_adapters(const ModelOutline& outline, std::vector<PlannedUnit>& units) {
  std::vector<PlannedUnit> out;
  for (PlannedUnit& unit : units) {
    if (unit.module_list >= 0 && !unit.experts && trains_beside(outline, unit.parameters)) {
      PlannedUnit& adapters = out.emplace_back(unit);
      adapters.name += ".adapters";
      adapters.reshard_after_forward = adapters.last_of_module_list = false;
      adapters.once_a_step = true;
      auto trains = [&](size_t p) { return outline.parameters[p].trainable; };
      std::erase_if(adapters.parameters, [&](size_t p) { return !trains(p); });
      std::erase_if(unit.parameters, trains);
    }
    out.push_back(std::move(unit));
  }
  units = std::move(out);
}

}  // namespace footprint

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
