// A plugin's data sets, whose faults are told as the plugin's.
#pragma once

#include <memory>

#include "engine/plugins/registry.h"
#include "meshwright/data/dataset_kind.h"

namespace meshwright::loader {

// Every method of `inner`, and of the data sets that it opens, run as code of the plugin, in
// whatever thread: what throws something else than an Error becomes Error(plugin_foreign_exception)
// with plugin, method and rank; Errors get a note of these.
std::shared_ptr<DatasetKind> guarded_kind(const LoadedPlugin& plugin,
                                          std::shared_ptr<DatasetKind> inner);

}  // namespace meshwright::loader
