// What an export says of its adapters, as peft reads it.
#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cmath>
#include <map>
#include <set>

#include "engine/job/adapters.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::plan {
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
      outline.moe ||
      std::any_of(outline.modules.begin(), outline.modules.end(), [&](const ModuleOutline& module) {
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
  const bool transposed = std::any_of(
      adapters.modules.begin(), adapters.modules.end(),
      [&](const std::string& module) { return adapted_weight(outline, module).stored.transposed; });
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
