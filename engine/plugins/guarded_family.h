// A plugin's model family, whose faults are told as the plugin's.
#pragma once

#include <memory>

#include "engine/plugins/registry.h"

namespace meshwright::loader {

// Every hook of `inner` run as code of the plugin: what throws something else than an Error becomes
// Error(plugin_foreign_exception) with plugin, hook and rank; Errors get a note of these. make()
// loads the plugin's running half first.
std::shared_ptr<ModelFamily> guarded_family(const LoadedPlugin& plugin,
                                            std::shared_ptr<ModelFamily> inner);

}  // namespace meshwright::loader
