// The facts this SDK library was built with: what a plugin's own facts are compared to.
#pragma once

#include <string_view>

#include "meshwright/export.h"

namespace meshwright {

// Sorted key=value lines. Keys that start with "info." are only reported; all others must match.
MESHWRIGHT_API std::string_view build_facts();
// "meshwright_abi_<hash16>": the marker symbol a plugin with equal facts carries.
MESHWRIGHT_API std::string_view build_facts_symbol();

}  // namespace meshwright
