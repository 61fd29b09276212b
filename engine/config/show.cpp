#include <algorithm>
#include <boost/json/array.hpp>

#include "engine/config/describe.h"
#include "engine/config/interpolate.h"
#include "engine/config/toml_value.h"

namespace meshwright::config {
namespace {

namespace json = boost::json;

std::string origin_text(const Options& table, const std::string& name) {
  if (!table.is_given(name)) return "default";
  Origin origin = table.origin(name);
  switch (origin.source) {
    case Origin::Source::builtin:
      return "default";
    case Origin::Source::file:
      return origin.file + ":" + std::to_string(origin.line);
    case Origin::Source::command_line:
      return "--set";
    case Origin::Source::environment:
      return "environment";
    case Origin::Source::api:
      return "set in code";
  }
  return "";
}

// TOML has no null.
const std::string kNotSet = "\"none\"";

// References are escaped, so that reading the text gives the same strings again.
OptionValue escaped(const OptionValue& value) {
  OptionValue out = value;
  if (auto* text = std::get_if<std::string>(&out)) *text = escape_references(*text);
  if (auto* list = std::get_if<std::vector<std::string>>(&out))
    for (std::string& text : *list) text = escape_references(text);
  if (auto* map = std::get_if<StringMap>(&out))
    for (auto& [key, text] : *map) text = escape_references(text);
  return out;
}

std::string value_text(const OptionValue& value) {
  std::string text = meshwright::to_toml(escaped(value));
  // A float must look like one, or it would come back as an integer.
  if (std::holds_alternative<double>(value) && text.find_first_of(".einf") == std::string::npos)
    text += ".0";
  return text;
}

json::value value_json(const OptionValue& value) {
  struct Convert {
    json::value operator()(std::monostate) const { return nullptr; }
    json::value operator()(bool v) const { return v; }
    json::value operator()(int64_t v) const { return v; }
    json::value operator()(double v) const { return v; }
    json::value operator()(const std::string& v) const { return json::value(v); }
    json::value operator()(const std::vector<std::string>& v) const {
      json::array out;
      for (const std::string& s : v) out.emplace_back(s);
      return out;
    }
    json::value operator()(const std::vector<double>& v) const {
      return json::array(v.begin(), v.end());
    }
    json::value operator()(const StringMap& v) const {
      json::object out;
      for (const auto& [key, text] : v) out[key] = text;
      return out;
    }
    json::value operator()(const StringTable& v) const {
      json::array out;
      for (const auto& row : v) out.push_back((*this)(row));
      return out;
    }
  };
  return std::visit(Convert{}, value);
}

// Tables in the engine's order, those of strategies after the shared ones.
std::vector<std::string> table_order(const Config& config) {
  std::vector<std::string> out;
  for (const OptionSchema& schema : engine_schemas()) {
    out.push_back(schema.table);
    if (schema.table != "distributed.context") continue;
    for (const auto& [name, options] : config.tables)
      if (options.schema().owner != "engine") out.push_back(name);
  }
  return out;
}

// A list as one value: [{pattern = "a.*", frozen = true}].
std::string list_toml(const std::vector<Options>& tables) {
  std::string out = "[";
  for (const Options& table : tables) {
    std::string line;
    for (const meshwright_option* option : table.schema().options)
      if (table.is_given(option->name))
        line += (line.empty() ? "" : ", ") + std::string(option->name) + " = " +
                (table.is_set(option->name) ? value_text(table.value(option->name)) : kNotSet);
    out += (out.size() > 1 ? ", {" : "{") + line + "}";
  }
  return out + "]";
}

void add_rows(const Options& table, bool with_origins, std::string& out) {
  for (const meshwright_option* option : table.schema().options) {
    // TOML has no null: what is not set and cannot be written as "none" is left out.
    bool set = table.is_set(option->name);
    std::string line =
        std::string(option->name) + " = " + (set ? value_text(table.value(option->name)) : kNotSet);
    if (!set && (option->flags & MESHWRIGHT_OPTIONAL) == 0) continue;
    if (with_origins) {
      if (line.size() < 44) line.resize(44, ' ');
      line += "  # " + origin_text(table, option->name);
    }
    out += line + "\n";
  }
}

json::object rows_json(const Options& table) {
  json::object rows;
  for (const meshwright_option* option : table.schema().options) {
    Origin origin = table.origin(option->name);
    json::object row{{"value", value_json(table.value(option->name))},
                     {"origin", origin_text(table, option->name)}};
    if (table.is_given(option->name) && origin.source == Origin::Source::file) {
      row["file"] = origin.file;
      row["line"] = origin.line;
      row["column"] = origin.column;
    }
    rows[option->name] = std::move(row);
  }
  return rows;
}

// The lists right below a table, with their names.
std::vector<std::pair<std::string, const std::vector<Options>*>> lists_below(
    const Config& config, const std::string& table) {
  std::vector<std::pair<std::string, const std::vector<Options>*>> out;
  for (const auto& [name, tables] : config.lists)
    if (name.substr(0, name.rfind('.')) == table) out.emplace_back(name, &tables);
  return out;
}

}  // namespace

std::string value_toml(const Config& config, const std::string& key) {
  std::vector<std::string> known;
  for (const auto& [name, tables] : config.lists) {
    known.push_back(name);
    if (name == key) return list_toml(tables);
  }
  for (const std::string& name : table_order(config)) {
    const Options& table = config.table(name);
    for (const meshwright_option* option : table.schema().options) {
      known.push_back(name.empty() ? option->name : name + "." + option->name);
      if (known.back() != key) continue;
      return table.is_set(option->name) ? value_text(table.value(option->name)) : kNotSet;
    }
  }
  Error error(ErrorCode::unknown_key, "there is no key " + key);
  if (std::string near = nearest_name(key, known); !near.empty())
    error.help("did you mean " + near + "?");
  throw error;
}

std::string show_toml(const Config& config, bool with_origins,
                      const std::vector<std::string>& without) {
  std::string out;
  for (const std::string& name : table_order(config)) {
    if (std::find(without.begin(), without.end(), name) != without.end()) continue;
    const Options& table = config.table(name);
    if (!name.empty()) out += (out.empty() ? "[" : "\n[") + name + "]\n";
    add_rows(table, with_origins, out);
    for (const auto& [list, tables] : lists_below(config, name))
      for (const Options& one : *tables) {
        out += "\n[[" + list + "]]\n";
        add_rows(one, with_origins, out);
      }
  }
  return out;
}

boost::json::object show_json(const Config& config) {
  json::object out;
  for (const std::string& name : table_order(config)) {
    out[name.empty() ? "(root)" : name] = rows_json(config.table(name));
    for (const auto& [list, tables] : lists_below(config, name)) {
      json::array all;
      for (const Options& one : *tables) all.push_back(rows_json(one));
      out[list] = std::move(all);
    }
  }
  return out;
}

}  // namespace meshwright::config
