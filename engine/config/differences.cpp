#include "engine/config/differences.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/config/toml_value.h"

namespace meshwright::config {
namespace {

void add(const Value& table, const std::string& path, std::vector<Setting>& out) {
  for (const Entry& entry : table.entries) {
    const std::string key = join_key(path, entry.key);
    if (entry.value.is_table())
      add(entry.value, key, out);
    else
      out.push_back({key, to_toml(entry.value)});
  }
}

}  // namespace

std::vector<Setting> settings_of(std::string_view toml, const std::string& file,
                                 Diagnostics& diagnostics) {
  std::vector<Setting> out;
  if (std::optional<Value> root = parse_toml(toml, file, diagnostics)) add(*root, "", out);
  return out;
}

std::optional<std::string> text_of(std::string_view value) {
  std::optional<Value> read = parse_toml_value(value);
  if (!read || read->kind != Value::Kind::string) return std::nullopt;
  return std::move(read->text);
}

std::vector<Difference> differences(const std::vector<std::vector<Setting>>& configurations) {
  std::vector<Difference> all;
  std::map<std::string, size_t> place;
  for (size_t i = 0; i < configurations.size(); ++i)
    for (const Setting& setting : configurations[i]) {
      auto [at, fresh] = place.emplace(setting.key, all.size());
      if (fresh) all.push_back({setting.key, std::vector<std::string>(configurations.size())});
      all[at->second].values[i] = setting.value;
    }
  std::erase_if(all, [](const Difference& one) {
    return std::all_of(one.values.begin(), one.values.end(),
                       [&](const std::string& value) { return value == one.values.front(); });
  });
  return all;
}

}  // namespace meshwright::config
