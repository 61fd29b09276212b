// A plugin's schema is checked before anything is read with it.
#pragma once

#include "meshwright/options.h"

namespace meshwright {

// Checks the schema itself: names, literals, ranges, duplicate names. Throws
// Error(plugin_bad_descriptor).
MESHWRIGHT_API void check_schema(const OptionSchema& schema);

}  // namespace meshwright
