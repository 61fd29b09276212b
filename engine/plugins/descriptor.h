// Checks the C descriptor of a loaded library and reads it into our own types.
#pragma once

#include "engine/plugins/registry.h"
#include "engine/plugins/verify_library.h"

namespace meshwright::loader {

// Throws Error(plugin_bad_magic | plugin_short_struct | plugin_sdk_major | plugin_bad_descriptor |
// plugin_bad_marker).
LoadedPlugin read_descriptor(const meshwright_plugin* descriptor, const VerifiedLibrary& verified,
                             const std::string& place);

// Whether this is its name or one of its aliases, in any letter case, '-' as '_'.
bool answers_to(const ComponentInfo& info, const std::string& name);

}  // namespace meshwright::loader
