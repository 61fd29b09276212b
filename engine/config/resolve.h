// What is said of a key that no table has.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/config/config.h"
#include "engine/config/toml_value.h"

namespace meshwright::config {

struct KnownKeys {
  const std::map<std::string, Options>& tables;
  const PluginSchemas& plugins;
  const StrategySchema* active;  // the strategy that will run; nullptr: not found
};

// The error for `key` = `table`.entry.key: not there yet, or what a name of another program is
// here, the table it belongs to, the nearest name.
Error unknown_key(const KnownKeys& known, const std::string& table, const std::string& key,
                  const Entry& entry, const Origin& origin);

// Whether the table is one of a list, like [[optimizer.group]].
bool is_list(const std::string& table);

// Whether another program's files have a key or table of this name, or keys in it.
bool is_foreign(const std::string& key, const Entry& entry);

}  // namespace meshwright::config
