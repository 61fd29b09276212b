#include "engine/job/adapters.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <variant>

#include "engine/job/base_dtype.h"
#include "meshwright/tp_plan.h"
#include "sdk/base/host/module_numbers.h"
#include "sdk/base/low_rank.h"

namespace meshwright::plan {
namespace {

constexpr const char* kAllLinear = "all-linear";

bool is_pattern(std::string_view wanted) {
  return wanted.find_first_of("*?[") != std::string_view::npos;
}

// Last parts of a name, or a pattern of full names.
bool selects(std::string_view wanted, std::string_view module) {
  return is_pattern(wanted) ? pattern_matches(wanted, module) : names_module(wanted, module);
}

std::vector<std::string> names_of(const Options& table, const char* key) {
  const OptionValue& value = table.value(key);
  if (const auto* one = std::get_if<std::string>(&value)) return {*one};
  return std::get<std::vector<std::string>>(value);
}

Error refuse(const Options& table, const char* key, ErrorCode code, const std::string& what) {
  return Error(code, what).key(std::string("lora.") + key).at(table.origin(key));
}

class Choice {
 public:
  Choice(const config::Config& config, const ModelOutline& outline)
      : table_(config.table("lora")), outline_(outline) {
    for (const ParameterOutline& p : outline.parameters) {
      const std::string_view module = module_of(p.name);
      if (p.shape.size() == 2 && last_part(p.name) == "weight") weights_.emplace(module, &p);
    }
  }

  // The weights that get an adapter, in the order of the outline.
  std::vector<const ParameterOutline*> weights() const {
    const std::vector<std::string> excluded = names_of(table_, "exclude_modules");
    for (const std::string& name : excluded) find(name, "exclude_modules");
    std::vector<const ModuleOutline*> wanted;
    for (const std::string& name : names_of(table_, "target_modules")) {
      const std::vector<const ModuleOutline*> found =
          name == kAllLinear ? all_linear() : find(name, "target_modules");
      wanted.insert(wanted.end(), found.begin(), found.end());
    }
    for (const std::string& name : excluded) check_takes_away(name, wanted);
    std::vector<const ParameterOutline*> out;
    for (const ModuleOutline& module : outline_.modules) {
      const bool left_out = std::any_of(excluded.begin(), excluded.end(), [&](const auto& name) {
        return selects(name, module.name);
      });
      if (!left_out && std::find(wanted.begin(), wanted.end(), &module) != wanted.end())
        out.push_back(weight_of(module));
    }
    if (out.empty())
      throw refuse(table_, "target_modules", ErrorCode::conflict,
                   "no Linear of " + outline_.architecture + " gets an adapter")
          .help("set lora.target_modules = \"all-linear\" and leave out lora.exclude_modules")
          .help("set lora.r = 0 to train the whole model");
    return out;
  }

 private:
  bool is_linear(const ModuleOutline& module) const {
    return module.kind == ModuleKind::linear && weights_.contains(module.name);
  }

  // A name may be a model's whose head or other part gets none anyway; a pattern was written to
  // take something away.
  void check_takes_away(const std::string& name,
                        const std::vector<const ModuleOutline*>& wanted) const {
    if (!is_pattern(name) ||
        std::any_of(wanted.begin(), wanted.end(),
                    [&](const ModuleOutline* module) { return selects(name, module->name); }))
      return;
    throw refuse(table_, "exclude_modules", ErrorCode::conflict,
                 "lora.exclude_modules: \"" + name +
                     "\" takes nothing away from what lora.target_modules selects")
        .help("a pattern is of full names, * within a part: \"" +
              (wanted.empty() ? std::string("model.layers.*.*.*") : wanted[0]->name) + "\" is one")
        .help("take \"" + name + "\" out of lora.exclude_modules");
  }

  std::vector<const ModuleOutline*> all_linear() const {
    std::vector<const ModuleOutline*> out;
    for (const ModuleOutline& module : outline_.modules)
      if (is_linear(module) && last_part(module.name) != "lm_head") out.push_back(&module);
    return out;
  }

  // What a name or pattern selects of Linears, and of what a user may have taken for one.
  std::vector<const ModuleOutline*> find(const std::string& name, const char* key) const {
    std::vector<const ModuleOutline*> out;
    std::vector<std::string> near;
    for (const ModuleOutline& module : outline_.modules) {
      const bool counts = is_linear(module) || module.kind == ModuleKind::linear ||
                          module.kind == ModuleKind::embedding ||
                          module.kind == ModuleKind::router || module.kind == ModuleKind::experts;
      if (counts && selects(name, module.name)) out.push_back(&module);
      if (!is_linear(module)) continue;
      near.push_back(module.name);
      near.emplace_back(last_part(module.name));
    }
    if (!out.empty()) return out;
    Error error = refuse(
        table_, key, ErrorCode::conflict,
        std::string("lora.") + key + ": \"" + name + "\" is no Linear of " + outline_.architecture);
    if (const std::string nearest = nearest_name(name, near); !nearest.empty())
      error.help("did you mean \"" + nearest + "\"?");
    std::set<std::string> lasts;
    for (const ModuleOutline* module : all_linear()) lasts.emplace(last_part(module->name));
    std::string list;
    for (const std::string& last : lasts) list += (list.empty() ? "\"" : ", \"") + last + "\"";
    throw error.help("its Linears are called " + list + "; \"all-linear\" selects them all");
  }

  const ParameterOutline* weight_of(const ModuleOutline& module) const {
    if (is_linear(module)) return weights_.find(module.name)->second;
    const char* what = module.kind == ModuleKind::embedding ? "an embedding"
                       : module.kind == ModuleKind::router  ? "a router"
                       : module.kind == ModuleKind::experts ? "a block of experts"
                                                            : "a head tied to the embedding";
    throw refuse(table_, "target_modules", ErrorCode::conflict,
                 module.name + " is " + what + ", which can have no adapter")
        .help("add \"" + module.name + "\" to lora.exclude_modules")
        .help("train it as a whole: [[optimizer.group]] with pattern = \"" + module.name +
              ".*\" and frozen = false");
  }

  const Options& table_;
  const ModelOutline& outline_;
  std::map<std::string_view, const ParameterOutline*> weights_;  // by module
};

// `otherwise`, but for modules that the pattern names (lora.rank_pattern, lora.alpha_pattern).
base::ModuleNumbers numbers_of(const Options& table, const char* pattern, double otherwise,
                               bool whole) {
  const auto* some = std::get_if<StringMap>(&table.value(pattern));
  try {
    return {otherwise, some != nullptr ? *some : StringMap(), whole};
  } catch (Error& error) {
    throw error.key(std::string("lora.") + pattern).at(table.origin(pattern));
  }
}
base::ModuleNumbers ranks_of(const Options& table) {
  return numbers_of(table, "rank_pattern", static_cast<double>(table.get_int("r")), true);
}
base::ModuleNumbers alphas_of(const Options& table) {
  return numbers_of(table, "alpha_pattern", table.get_number("alpha"), false);
}

// A name that means nothing is a mistake, and an alpha that is not counted would not be seen.
void check_patterns(const Options& table, const std::vector<const ParameterOutline*>& weights) {
  std::vector<std::string> modules;
  for (const ParameterOutline* weight : weights) {
    modules.emplace_back(module_of(weight->name));
    modules.push_back(file_module(*weight));
  }
  for (const auto& [pattern, numbers] :
       {std::pair("rank_pattern", ranks_of(table)), std::pair("alpha_pattern", alphas_of(table))})
    if (const std::string name = numbers.without_module(modules); !name.empty()) {
      Error error = refuse(table, pattern, ErrorCode::conflict,
                           std::string("lora.") + pattern + ": " + to_toml(name) +
                               " is no module that has an adapter");
      std::vector<std::string> near = modules;
      for (const std::string& module : modules) near.emplace_back(last_part(module));
      if (const std::string nearest = nearest_name(name, near); !nearest.empty())
        error.help("did you mean \"" + nearest + "\"?");
      const std::string folder = table.get_string("adapter");
      throw error.help(
          "take " + to_toml(name) + " out of " +
          (folder.empty() ? std::string("lora.") + pattern : folder + "/adapter_config.json"));
    }
}

// Above the smaller size A and B could say no more than a whole matrix. `ranks`: of the weights.
void check_ranks(const Options& table, const std::vector<const ParameterOutline*>& weights,
                 const std::vector<int64_t>& ranks) {
  const ParameterOutline* smallest = nullptr;
  int64_t r = 0, most = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const int64_t size = std::min(weights[i]->shape[0], weights[i]->shape[1]);
    if (ranks[i] <= size || (smallest != nullptr && size >= most)) continue;
    smallest = weights[i];
    r = ranks[i];
    most = size;
  }
  if (smallest == nullptr) return;
  const std::string module(module_of(smallest->name));
  const bool others = r != table.get_int("r");
  Error error = refuse(table, others ? "rank_pattern" : "r", ErrorCode::out_of_range,
                       (others ? "lora.rank_pattern: r = " : "lora.r = ") + std::to_string(r) +
                           " is above the smaller size of " + smallest->name + " [" +
                           std::to_string(smallest->shape[0]) + ", " +
                           std::to_string(smallest->shape[1]) + "]");
  error.help(others ? "set lora.rank_pattern to at most " + std::to_string(most) + " for " + module
                    : "set lora.r = " + std::to_string(most));
  throw error.help("add \"" + module + "\" to lora.exclude_modules");
}

std::string factor_name(std::string_view weight, std::string_view part) {
  return std::string(module_of(weight)) + "." + std::string(part) + ".weight";
}

// The two parameters of an adapter. B's rows lie as the weight's; files call both after the weight.
std::vector<ParameterOutline> parameters_of(const ModelOutline& outline,
                                            const ParameterOutline& weight, int64_t r) {
  const DType dtype = trained_dtype(outline, weight.dtype);
  ParameterOutline in{
      .name = factor_name(weight.name, kFactorIn), .shape = {r, weight.shape[1]}, .dtype = dtype},
      out{.name = factor_name(weight.name, kFactorOut),
          .shape = {weight.shape[0], r},
          .dtype = dtype,
          .fused = weight.fused};
  if (!weight.stored.names.empty()) {
    in.stored.names = {factor_name(weight.stored.names[0], kFactorIn)};
    out.stored.names = {factor_name(weight.stored.names[0], kFactorOut)};
  }
  return {std::move(in), std::move(out)};
}

}  // namespace

std::string file_module(const ParameterOutline& p) {
  return std::string(module_of(p.stored.names.empty() ? p.name : p.stored.names[0]));
}

AdapterSize Adapters::size(std::string_view module) const {
  const auto other = others.find(module);
  return other == others.end() ? AdapterSize{r, alpha} : other->second;
}

double Adapters::scale(std::string_view module) const {
  const AdapterSize one = size(module);
  const auto rank = static_cast<double>(one.r);
  return one.alpha / (rank_stabilized ? std::sqrt(rank) : rank);
}

InitialValue initial_adapter(const ParameterOutline& parameter, bool gaussian) {
  const std::optional<LowRankFactor> factor = low_rank_factor(parameter.name);
  if (factor && factor->out) return {.kind = InitialValue::Kind::constant, .value = 0};
  if (gaussian)
    return {.kind = InitialValue::Kind::normal,
            .value = 1 / static_cast<double>(parameter.shape[0])};
  return {.kind = InitialValue::Kind::uniform,
          .value = 1 / std::sqrt(static_cast<double>(parameter.shape[1]))};
}

Adapters add_adapters(const config::Config& config, ModelOutline& outline) {
  const Options& table = config.table("lora");
  if (table.get_int("r") == 0) return {};
  const std::vector<const ParameterOutline*> weights = Choice(config, outline).weights();
  check_patterns(table, weights);
  const base::ModuleNumbers numbers = ranks_of(table);
  std::vector<int64_t> ranks;
  for (const ParameterOutline* weight : weights)
    ranks.push_back(
        static_cast<int64_t>(numbers.of(file_module(*weight), module_of(weight->name))));
  check_ranks(table, weights, ranks);
  std::map<std::string, std::vector<ParameterOutline>, std::less<>> added;  // by module
  for (size_t i = 0; i < weights.size(); ++i)
    added.emplace(module_of(weights[i]->name), parameters_of(outline, *weights[i], ranks[i]));
  // A module's own parameters come before those of the modules below it.
  std::vector<ParameterOutline> parameters;
  for (size_t i = 0; i < outline.parameters.size(); ++i) {
    const std::string module(module_of(outline.parameters[i].name));
    const bool last =
        i + 1 == outline.parameters.size() || module_of(outline.parameters[i + 1].name) != module;
    parameters.push_back(std::move(outline.parameters[i]));
    if (const auto at = added.find(module); last && at != added.end())
      parameters.insert(parameters.end(), at->second.begin(), at->second.end());
  }
  outline.parameters = std::move(parameters);
  std::vector<ModuleOutline> modules;
  for (ModuleOutline& module : outline.modules) {
    const std::string name = module.name;
    modules.push_back(std::move(module));
    if (!added.contains(name)) continue;
    for (std::string_view part : {kFactorIn, kFactorOut})
      modules.push_back({name + "." + std::string(part), ModuleKind::other, "Linear"});
  }
  outline.modules = std::move(modules);
  return adapters_in(config, outline);
}

Adapters adapters_in(const config::Config& config, const ModelOutline& outline) {
  const Options& table = config.table("lora");
  Adapters out;
  if (table.get_int("r") == 0) return out;
  out.r = table.get_int("r");
  out.alpha = table.get_number("alpha");
  out.dropout = table.get_number("dropout");
  out.rank_stabilized = table.get_bool("rslora");
  out.gaussian = table.get_string("init") == "gaussian";
  const base::ModuleNumbers alphas = alphas_of(table);
  for (const ParameterOutline& p : outline.parameters) {
    const std::optional<LowRankFactor> factor = low_rank_factor(p.name);
    if (!factor) continue;
    out.parameters.insert(p.name);
    if (!factor->out) continue;
    const std::string module(factor->linear);
    const std::string stored = file_module(p);  // of B, which lies below the Linear
    const AdapterSize size{p.shape[1], alphas.of(stored.substr(0, stored.rfind('.')), module)};
    if (size != AdapterSize{out.r, out.alpha}) out.others.emplace(module, size);
    out.modules.push_back(module);
  }
  return out;
}

std::string adapter_settings(const config::Config& config) {
  const Options& table = config.table("lora");
  std::string out;
  if (table.get_int("r") == 0) return out;
  for (const char* name : {"r", "alpha", "target_modules", "exclude_modules", "rslora"})
    out += std::string("lora.") + name + "=" + to_toml(table.value(name)) + "\n";
  for (const char* name : {"rank_pattern", "alpha_pattern"})
    if (table.is_set(name))
      out += std::string("lora.") + name + "=" + to_toml(table.value(name)) + "\n";
  return out;
}

}  // namespace meshwright::plan
