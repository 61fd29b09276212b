#include "engine/config/differences.h"

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

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

// As numbers where both are: a file may say 0 where another says 0.0.
bool same_value(const std::string& a, const std::string& b) {
  if (a == b) return true;
  const std::optional<Value> left = parse_toml_value(a), right = parse_toml_value(b);
  auto number = [](const std::optional<Value>& v) {
    return v && (v->kind == Value::Kind::integer || v->kind == Value::Kind::number);
  };
  return number(left) && number(right) && as_number(*left) == as_number(*right);
}

// Whether a key that one side alone has says something there.
bool says_something(const Config& config, const std::string& key, const std::string& value) {
  const size_t dot = key.rfind('.');
  const auto table = config.tables.find(dot == std::string::npos ? "" : key.substr(0, dot));
  if (table == config.tables.end()) return false;
  const meshwright_option* option = table->second.schema().find(key.substr(dot + 1));
  if (option == nullptr) return true;  // a list, or a key of another version
  if (std::holds_alternative<std::monostate>(default_of(*option))) return value != "\"none\"";
  return !same_value(value, option->default_value);
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

std::vector<Difference> with_effect(std::vector<Difference> found, const Config& config) {
  std::erase_if(found, [&](const Difference& one) {
    std::string only;
    for (const std::string& value : one.values) {
      if (value.empty()) continue;
      if (!only.empty()) return false;  // both have it
      only = value;
    }
    return !says_something(config, one.key, only);
  });
  return found;
}

}  // namespace meshwright::config
