// ${VAR} and ${VAR:-default} inside strings; $${ stands for a literal ${. Values are not scanned
// again.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "engine/config/toml_value.h"

namespace meshwright::config {

using Environment = std::function<std::optional<std::string>(const std::string&)>;

// Replaces the references in every string of the tree. Each problem is an E0207 that names the key
// and its place in `file`.
void interpolate(Value& root, const Environment& environment, const std::string& file,
                 Diagnostics& diagnostics);
// `text` so that interpolation gives it back unchanged.
std::string escape_references(std::string_view text);
bool is_valid_utf8(std::string_view text);

}  // namespace meshwright::config
