// A folder that peft wrote, or an export of adapters, as lora.adapter names it.
#pragma once

#include "engine/config/config.h"

namespace meshwright::plan {

// Holds its adapter_config.json against [lora]: adds Error(conflict) where they differ, and
// Error(weights_mismatch) for what is not read here. Nothing where lora.adapter is not set.
void check_adapter_folder(const config::Config& config, Diagnostics& diagnostics);

}  // namespace meshwright::plan
