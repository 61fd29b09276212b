// A job: its configuration, the plugins that come with it, and what its data come to.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "engine/config/config.h"

namespace meshwright::plan {

// Plugins that the configuration of a run's folder names, for verbs that read such a folder:
// somebody else may have made it, and what it brings along is data.

struct ForeignPlugins {
  std::vector<std::filesystem::path> files, folders;  // [plugins] load and path
  std::vector<Origin> origins;                        // of the files
};

// What `source`, the configuration in `folder`, names by absolute paths that lead out of the
// folder. `tell` hears of each that is not where plugins are looked for anyway. Throws
// Error(plugin_owner) for any other unless they are `trusted`: --trust-plugins.
ForeignPlugins foreign_plugins(const config::Source& source, const std::filesystem::path& folder,
                               bool trusted, const std::function<void(const std::string&)>& tell);

}  // namespace meshwright::plan
