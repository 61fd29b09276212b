// A folder that peft wrote, or an export of adapters, as lora.adapter names it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "engine/job/adapters.h"
#include "engine/job/plan.h"
#include "sdk/base/host/module_numbers.h"

namespace meshwright::plan {

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
