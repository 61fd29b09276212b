// A plugin's running model, whose faults are told as the plugin's.
#pragma once

#include <memory>

#include "meshwright/parallel/parallel.h"
#include "plugin_at_work.h"

namespace meshwright::detail {

// Every method of `inner`, run as code of the plugin: what throws something else than an Error
// becomes Error(plugin_foreign_exception) with plugin, method and rank; a connection that LibTorch
// lost becomes Error(collective_failed); Errors, and those of memory, pass as they are. nullptr
// stays nullptr.
MESHWRIGHT_API std::unique_ptr<ParallelModel> guarded_model(const PluginCode* plugin,
                                                            std::unique_ptr<ParallelModel> inner);

}  // namespace meshwright::detail
