// Low-rank adapters (Hu et al. 2021), as [lora] asks for them: beside the weight W of a Linear lie
// A [r, in] and B [out, r], and its output is W x + b + scale B (A x). The parameters are those of
// two modules below the Linear (sdk/base/low_rank.h). Pure, for the plan and the run alike.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/config.h"
#include "engine/job/plan.h"
#include "meshwright/model/model_family.h"
#include "meshwright/outline.h"
#include "sdk/base/host/module_numbers.h"

namespace meshwright::plan {

struct AdapterSize {
  int64_t r = 0;
  double alpha = 0;
  bool operator==(const AdapterSize&) const = default;
};

struct Adapters {
  int64_t r = 0;  // 0: there are none
  double alpha = 0, dropout = 0;
  bool rank_stabilized = false, gaussian = false;
  std::vector<std::string> modules;                        // that have one, in the outline's order
  std::map<std::string, AdapterSize, std::less<>> others;  // of modules that differ from r or alpha
  std::set<std::string, std::less<>> parameters;

  bool any() const { return !modules.empty(); }
  AdapterSize size(std::string_view module) const;
  double scale(
      std::string_view module) const;  // alpha / r, or alpha / sqrt(r) (Kalajdzievski 2023)
  bool hold(std::string_view parameter) const { return parameters.contains(parameter); }
};
// Of a parameter of an adapter, by lora.init.
InitialValue initial_adapter(const ParameterOutline& parameter, bool gaussian);

// Adds the modules and parameters of the adapters to the outline, where a module that has them
// lists them. Nothing with lora.r = 0. Throws Error(conflict) for names that select nothing, or
// what can have no adapter, and Error(out_of_range) for an r above the sizes of a Linear.
Adapters add_adapters(const config::Config& config, ModelOutline& outline);
// Those of an outline that has them already.
Adapters adapters_in(const config::Config& config, const ModelOutline& outline);

// What files call the module of a parameter.
std::string file_module(const ParameterOutline& parameter);

// "q_proj" of "model.layers.0.self_attn.q_proj"
inline std::string_view last_part(std::string_view name) {
  return name.substr(name.rfind('.') + 1);
}

// Whether `name` is the module's, or its last parts: what peft's names mean. "self_attn.q_proj" is
// "model.layers.0.self_attn.q_proj", and "q_proj" is both.
inline bool names_module(std::string_view name, std::string_view module) {
  return module.ends_with(name) &&
         (module.size() == name.size() || module[module.size() - name.size() - 1] == '.');
}

// The text of peft's adapter_config.json. `base`: the folder of the base model; "": none is known.
std::string peft_config(const Adapters& adapters, const ModelOutline& outline,
                        const std::string& base);

// What makes the same adapters again: settings as --set takes them, a line each.
std::string adapter_settings(const config::Config& config);

// Which modules an adapter_config.json of peft is for.

class AdapterTargets {
 public:
  AdapterTargets() = default;  // all
  // By target_modules, exclude_modules, layers_to_transform and layers_pattern, as peft takes them.
  // An expression that is not read here (base::module_expression()) is for all modules, and one
  // that excludes for none.
  explicit AdapterTargets(const boost::json::object& config);

  bool hold(std::string_view module) const;
  // Whether it names modules, each of which has tensors: no expression, and not "all-linear".
  bool are_names() const { return names_.has_value(); }
  // What the file says: "target_modules = [...], layers_to_transform = [1]".
  const std::string& text() const { return text_; }

 private:
  bool is_in_layers(std::string_view module) const;
  std::optional<std::vector<std::string>> names_;
  std::optional<std::regex> expression_;
  bool all_linear_ = false;
  std::vector<std::string> excluded_;
  std::optional<std::regex> excluded_expression_;
  std::vector<int64_t> layers_;              // empty: all
  std::vector<std::string> layers_pattern_;  // what may stand before a layer's number; empty: any
  std::string text_;
};

// A folder that peft wrote, or an export of adapters, as lora.adapter names it.

// Takes from its adapter_config.json what [lora] does not set of r, alpha, rank_pattern,
// alpha_pattern, rslora, target_modules and exclude_modules. Adds an error where r is to come from
// there and cannot, and tells of another dropout. Nothing where lora.adapter is not set.
void take_from_adapter_folder(config::Config& config, Diagnostics& diagnostics);

// Holds the file against [lora]: adds Error(conflict) where they differ, and
// Error(weights_mismatch) for what is not read here. Nothing where lora.adapter is not set.
void check_adapter_folder(const Job& job, Diagnostics& diagnostics);

// Holds adapter_model.safetensors against the job's model as well, where all of that fits and the
// job names its model: adds Error(file_unreadable | bad_safetensors | weights_mismatch). Reads its
// header alone.
void check_adapter_files(const Job& job, Diagnostics& diagnostics);

// Whether nothing is there yet that the run could go on with. Where something is, the run itself
// finds out whether it does (checkpoint::choose_start): then the folder is not read again.
bool begins_afresh(const config::Config& config);

// What its adapter_config.json says, for what has no [lora] to hold it against.
struct AdapterFolder {
  int64_t r = 0;
  double alpha = 0;
  meshwright::base::ModuleNumbers ranks, alphas;  // of all modules
  bool rank_stabilized = false;
  std::string base;        // the model that it names; "": none
  std::string other_base;  // a notice where that is another folder than the model's
  AdapterTargets targets;
};
// `model`: that of the adapters, in the folder `of` (empty: in none). Throws Error(file_unreadable
// | weights_mismatch), without a key.
AdapterFolder read_adapter_folder(const std::filesystem::path& folder, const ModelOutline& model,
                                  const std::filesystem::path& of = {});

}  // namespace meshwright::plan
