// A folder that peft wrote, or an export of adapters, as lora.adapter names it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "engine/config/config.h"

namespace meshwright::plan {

// Holds its adapter_config.json against [lora]: adds Error(conflict) where they differ, and
// Error(weights_mismatch) for what is not read here. Nothing where lora.adapter is not set.
void check_adapter_folder(const config::Config& config, Diagnostics& diagnostics);

// What its adapter_config.json says, for what has no [lora] to hold it against.
struct AdapterFolder {
  int64_t r = 0;
  double alpha = 0;
  bool rank_stabilized = false;
  std::string base;  // the model that it names; "": none
};
// Throws Error(file_unreadable | weights_mismatch), without a key.
AdapterFolder read_adapter_folder(const std::filesystem::path& folder);

}  // namespace meshwright::plan
