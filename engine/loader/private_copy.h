// A library whose file is written to while it is loaded would change under the job, or end it.
#pragma once

#include <filesystem>

#include "sdk/base/plugin_at_work.h"

namespace meshwright::loader {

// Makes what is loaded from this file memory of this process alone, at the same addresses; what the
// system does not allow stays as it is. For libraries whose code does not run yet. Its code is
// known as that plugin's from now on.
void keep_private(const std::filesystem::path& file, const detail::PluginCode* plugin);

}  // namespace meshwright::loader
