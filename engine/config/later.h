// Words that keys do not take yet, and keys that are not there yet.
#pragma once

#include <optional>
#include <string>

#include "engine/config/toml_value.h"
#include "meshwright/error.h"

namespace meshwright::config {

// Error(not_in_release), with what to use until then, where a later version may know the value.
// nullopt: it is just wrong. `key`: dotted.
std::optional<Error> later_than_this(const std::string& key, const Value& value);

// The same of a key that no table has: optimizer.layer_decay. `from_set`: it stands in a --set.
std::optional<Error> later_key(const std::string& key, bool from_set);

}  // namespace meshwright::config
