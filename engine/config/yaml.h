// YAML as the values of this room, each with its place. yaml-cpp stays behind parse_yaml().
#pragma once

#include <string>
#include <string_view>

#include "engine/config/toml_value.h"

namespace meshwright::config {

// The first document of `text`, whose root must be a mapping. Plain words are read as Python's YAML
// and Automodel read them: true, yes, 3, 1e-5; null is the string "none". Merge keys (<<) are
// followed. Throws Error(bad_foreign_config) with line and column for what is no YAML, and for what
// is nested deeper or grows larger, by its aliases, than a configuration does.
Value parse_yaml(std::string_view text, const std::string& file);

}  // namespace meshwright::config
