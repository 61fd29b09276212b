// --set a.b=c: one override of the command line.
#pragma once

#include <string>

#include "engine/config/toml_value.h"

namespace meshwright::config {

// Puts the value into the tree. A table given for a section ([run], [distributed],
// [distributed.fsdp2] ...) is merged into it key by key; any other value replaces what was there.
// E0217 for text that is not key=value.
void apply_set(Value& root, const std::string& text, Diagnostics& diagnostics);

}  // namespace meshwright::config
