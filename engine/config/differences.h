// Configurations beside each other, key by key.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config/config.h"
#include "meshwright/error.h"

namespace meshwright::config {

// A key with its table and its value as TOML: "optimizer.lr", "0.001".
struct Setting {
  std::string key, value;
  bool operator==(const Setting&) const = default;
};
// Every value of a TOML file, in its order; a list is one value. A syntax error goes to
// `diagnostics`, and nothing is returned then.
std::vector<Setting> settings_of(std::string_view toml, const std::string& file,
                                 Diagnostics& diagnostics);
// The text that a setting's value says; nullopt where that is no string.
std::optional<std::string> text_of(std::string_view value);

// A key whose values are not all the same. `values`: one for each configuration; empty: it is not
// there.
struct Difference {
  std::string key;
  std::vector<std::string> values;
};
std::vector<Difference> differences(const std::vector<std::vector<Setting>>& configurations);
// Those of `found` that change something. A key that one side alone has belongs to a table that is
// not in use on the other: of a table that `config` has it counts where it is not the default, of
// another strategy's or data set's never.
std::vector<Difference> with_effect(std::vector<Difference> found, const Config& config);

}  // namespace meshwright::config
