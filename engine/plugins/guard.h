// A plugin's objects as the engine hands them on: every hook runs as code of the plugin, in
// whatever thread. What it throws and is no Error becomes Error(plugin_foreign_exception) with
// plugin, hook and rank; Errors get a note of these.
#pragma once

#include <memory>

#include "engine/plugins/registry.h"

namespace meshwright::loader {

std::shared_ptr<Strategy> guard(const LoadedPlugin& plugin, std::shared_ptr<Strategy> made);
// Refuses outlines and first values that cannot be right, by Error(plugin_nonconforming).
std::shared_ptr<ModelFamily> guard(const LoadedPlugin& plugin, std::shared_ptr<ModelFamily> made);
// The data sets that it opens likewise.
std::shared_ptr<DatasetKind> guard(const LoadedPlugin& plugin, std::shared_ptr<DatasetKind> made);

}  // namespace meshwright::loader
