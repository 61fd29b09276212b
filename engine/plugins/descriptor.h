// Checks the C descriptor of a loaded library and reads it into our own types.
#pragma once

#include "engine/plugins/registry.h"
#include "engine/plugins/verify_library.h"
#include "meshwright/components.h"

namespace meshwright::loader {

// Throws Error(plugin_bad_magic | plugin_short_struct | plugin_sdk_major | plugin_bad_descriptor |
// plugin_bad_marker).
LoadedPlugin read_descriptor(const meshwright_plugin* descriptor, const VerifiedLibrary& verified,
                             const std::string& place);

// Whether this is its name or one of its aliases, in any letter case, '-' as '_'.
bool answers_to(const ComponentInfo& info, const std::string& name);

// The raw struct of one of the plugin's strategies; arrays step by the struct size the plugin knew.
const meshwright_strategy* raw_strategy(const meshwright_plugin& descriptor, size_t index);

// The same of its model families or data sets, by the extension's id; nullptr: it has none.
const meshwright_component* raw_component(const meshwright_plugin& descriptor, uint32_t id,
                                          size_t index);

}  // namespace meshwright::loader
