#include "engine/job/adapters.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <map>
#include <set>
#include <variant>

#include "engine/job/parameter_groups.h"
#include "meshwright/error.h"
#include "meshwright/tp_plan.h"
#include "sdk/base/host/module_numbers.h"
#include "sdk/base/low_rank.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/words.h"

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
      const bool left_out = std::ranges::any_of(
          excluded, [&](const auto& name) { return selects(name, module.name); });
      if (!left_out && std::ranges::find(wanted, &module) != wanted.end())
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
    if (!is_pattern(name) || std::ranges::any_of(wanted, [&](const ModuleOutline* module) {
          return selects(name, module->name);
        }))
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

namespace {

// A string, or those of a list.
std::vector<std::string> strings_in(const boost::json::value* value) {
  std::vector<std::string> out;
  if (value != nullptr && value->is_string()) out.emplace_back(value->as_string());
  if (value != nullptr && value->is_array())
    for (const boost::json::value& one : value->as_array())
      if (one.is_string()) out.emplace_back(one.as_string());
  return out;
}

// nullopt: it is no string, or none that is read here.
std::optional<std::regex> expression_in(const boost::json::value* value) try {
  if (value == nullptr || !value->is_string()) return std::nullopt;
  return base::module_expression(std::string(value->as_string()));
} catch (const Error&) {
  return std::nullopt;
}

bool expression_fits(const std::optional<std::regex>& expression, std::string_view module) {
  return expression && std::regex_match(module.begin(), module.end(), *expression);
}

bool names_one(const std::vector<std::string>& names, std::string_view module) {
  return std::ranges::any_of(names,
                             [&](const std::string& name) { return names_module(name, module); });
}

std::optional<int64_t> layer_number(std::string_view part) {
  const std::optional<int64_t> out = text::to_number(part);
  return out && *out >= 0 ? out : std::nullopt;
}

}  // namespace

AdapterTargets::AdapterTargets(const boost::json::object& config) {
  const boost::json::value *targets = config.if_contains("target_modules"),
                           *excluded = config.if_contains("exclude_modules"),
                           *layers = config.if_contains("layers_to_transform");
  if (targets != nullptr && targets->is_array()) names_ = strings_in(targets);
  if (targets != nullptr && targets->is_string()) {
    all_linear_ = targets->as_string() == "all-linear";
    if (!all_linear_) expression_ = expression_in(targets);
  }
  if (excluded != nullptr && excluded->is_array()) excluded_ = strings_in(excluded);
  excluded_expression_ = expression_in(excluded);
  if (layers != nullptr && layers->is_int64()) layers_ = {layers->as_int64()};
  if (layers != nullptr && layers->is_array())
    for (const boost::json::value& one : layers->as_array())
      if (one.is_int64()) layers_.push_back(one.as_int64());
  layers_pattern_ = strings_in(config.if_contains("layers_pattern"));
  std::erase(layers_pattern_, "");
  for (const char* name :
       {"target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"})
    if (const boost::json::value* value = config.if_contains(name);
        value != nullptr && !value->is_null())
      text_ += (text_.empty() ? "" : ", ") + (name + (" = " + boost::json::serialize(*value)));
}

// The number is the last one between dots with two names before it at least, and the right one
// where layers_pattern says which. peft leaves a string of target_modules alone.
bool AdapterTargets::is_in_layers(std::string_view module) const {
  if (layers_.empty()) return true;
  for (size_t end = module.rfind('.'); end != std::string_view::npos && end > 0;) {
    const size_t begin = module.rfind('.', end - 1);
    if (begin == std::string_view::npos) return false;
    const std::string_view before = module.substr(0, begin);
    const std::optional<int64_t> number = layer_number(module.substr(begin + 1, end - begin - 1));
    if (number && before.find('.') != std::string_view::npos &&
        (layers_pattern_.empty() ||
         std::ranges::any_of(layers_pattern_, [&](const std::string& name) {
           return before.ends_with("." + name);
         })))
      return std::ranges::find(layers_, *number) != layers_.end();
    end = begin;
  }
  return false;
}

bool AdapterTargets::hold(std::string_view module) const {
  if (names_one(excluded_, module) || expression_fits(excluded_expression_, module)) return false;
  // peft asks for the layer of those alone that a last part of a name selects.
  if (names_ && std::find(names_->begin(), names_->end(), module) != names_->end()) return true;
  if (names_) return names_one(*names_, module) && is_in_layers(module);
  if (all_linear_) return !names_module("lm_head", module);
  return !expression_ || expression_fits(expression_, module);
}

// What an export says of its adapters, as peft reads it.

namespace {

const ParameterOutline& adapted_weight(const ModelOutline& outline, const std::string& module) {
  return *outline.find_parameter(module + ".weight");
}

// What peft finds these modules by: their last names where these mean no other module, else their
// full names. Experts are one module here and may be many there.
std::vector<std::string> peft_targets(const Adapters& adapters, const ModelOutline& outline) {
  const std::set<std::string_view> modules(adapters.modules.begin(), adapters.modules.end());
  std::set<std::string, std::less<>> last, full;
  for (const std::string& module : adapters.modules)
    full.insert(file_module(adapted_weight(outline, module)));
  for (const std::string& name : full) last.emplace(last_part(name));
  const bool others =
      outline.moe || std::ranges::any_of(outline.modules, [&](const ModuleOutline& module) {
        return last.contains(last_part(module.name)) && !modules.contains(module.name);
      });
  const std::set<std::string, std::less<>>& out = others ? full : last;
  return {out.begin(), out.end()};
}

// A whole number without a point, as peft has it.
boost::json::value json_number(double number) {
  if (number == std::floor(number) && number < 1e15) return static_cast<int64_t>(number);
  return number;
}

// Numbers of modules that differ from `all`, by last names where all of that name have the one
// number, else by full names.
boost::json::object pattern_of(const Adapters& adapters, const ModelOutline& outline, double all,
                               double (*number)(const AdapterSize&)) {
  std::map<std::string, double> by_module;
  std::map<std::string, std::set<double>> by_last;
  for (const std::string& module : adapters.modules) {
    const std::string name = file_module(adapted_weight(outline, module));
    by_module[name] = number(adapters.size(module));
    by_last[std::string(last_part(name))].insert(by_module[name]);
  }
  boost::json::object out;
  for (const auto& [last, numbers] : by_last)
    if (numbers.size() == 1 && *numbers.begin() != all) out[last] = json_number(*numbers.begin());
  for (const auto& [name, one] : by_module)
    if (one != all && by_last.at(std::string(last_part(name))).size() > 1)
      out[name] = json_number(one);
  return out;
}

}  // namespace

std::string peft_config(const Adapters& adapters, const ModelOutline& outline,
                        const std::string& base) {
  namespace json = boost::json;
  const std::vector<std::string> targets = peft_targets(adapters, outline);
  const bool transposed = std::ranges::any_of(adapters.modules, [&](const std::string& module) {
    return adapted_weight(outline, module).stored.transposed;
  });
  json::object out;
  out["alpha_pattern"] = pattern_of(adapters, outline, adapters.alpha,
                                    [](const AdapterSize& size) { return size.alpha; });
  out["base_model_name_or_path"] = base.empty() ? json::value(nullptr) : json::value(base);
  out["bias"] = "none";
  // Of Conv1D, whose weight lies [in, out]: peft sets it there by itself, with a warning where a
  // file says otherwise, and needs it to merge. A and B lie alike either way, so lora.adapter takes
  // it back for such a model, and for no other.
  out["fan_in_fan_out"] = transposed;
  out["inference_mode"] = true;
  out["init_lora_weights"] = true;
  out["lora_alpha"] = json_number(adapters.alpha);
  out["lora_dropout"] = adapters.dropout;
  out["modules_to_save"] = nullptr;
  out["peft_type"] = "LORA";
  out["r"] = adapters.r;
  out["rank_pattern"] =
      pattern_of(adapters, outline, static_cast<double>(adapters.r),
                 [](const AdapterSize& size) { return static_cast<double>(size.r); });
  out["target_modules"] = json::array(targets.begin(), targets.end());
  out["task_type"] = "CAUSAL_LM";
  out["use_dora"] = false;
  out["use_rslora"] = adapters.rank_stabilized;
  return report::pretty_json(out);
}

}  // namespace meshwright::plan
