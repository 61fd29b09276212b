// A plugin's model as it runs, whose faults are told as the plugin's.
#pragma once

#include <memory>

#include "meshwright/model/running_model.h"
#include "plugin_at_work.h"

namespace meshwright::detail {

// Every method of `inner`, run as code of the plugin, as guarded_model() does for strategies. What
// comes out of it must be what it says: Error(plugin_nonconforming) with plugin, method and rank.
// `vocabulary`: the outline's.
MESHWRIGHT_API std::unique_ptr<RunningModel> guarded_running(const PluginCode* plugin,
                                                             std::unique_ptr<RunningModel> inner,
                                                             int64_t vocabulary);

}  // namespace meshwright::detail
