#include "engine/config/describe.h"

#include <algorithm>
#include <boost/json/array.hpp>

#include "engine/config/foreign.h"
#include "engine/config/source.h"
#include "engine/config/toml_value.h"
#include "meshwright/dtype.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"

namespace meshwright::config {

namespace {

namespace json = boost::json;

json::value literal_json(const OptionValue& value) {
  if (const bool* b = std::get_if<bool>(&value)) return *b;
  if (const int64_t* i = std::get_if<int64_t>(&value)) return *i;
  if (const double* d = std::get_if<double>(&value)) return *d;
  if (const auto* s = std::get_if<std::string>(&value)) return json::value(*s);
  if (const auto* n = std::get_if<std::vector<double>>(&value))
    return json::array(n->begin(), n->end());
  if (std::holds_alternative<std::vector<std::string>>(value)) {
    json::array out;
    for (const std::string& s : std::get<std::vector<std::string>>(value)) out.emplace_back(s);
    return out;
  }
  return nullptr;
}

void bounds(json::object& out, const meshwright_option& o) {
  if ((o.flags & MESHWRIGHT_NO_MIN) == 0)
    out[(o.flags & MESHWRIGHT_OPEN_MIN) != 0 ? "exclusiveMinimum" : "minimum"] = o.min;
  if ((o.flags & MESHWRIGHT_NO_MAX) == 0) out["maximum"] = o.max;
}

json::object string_form(const meshwright_option& o) {
  json::object out{{"type", "string"}};
  // A dtype has several names, of which the choices are one each.
  if (o.choices != nullptr && (o.flags & (MESHWRIGHT_IGNORE_CASE | MESHWRIGHT_DTYPE)) == 0) {
    json::array names;
    for (const std::string& name : text::split(o.choices, '|')) names.emplace_back(name);
    out["enum"] = std::move(names);
  }
  return out;
}

// One option as JSON Schema; interpolated strings are allowed wherever a string is.
json::object option_schema(const meshwright_option& o) {
  json::array forms;
  const json::object string{{"type", "string"}};
  if ((o.type & MESHWRIGHT_BOOL) != 0) forms.push_back(json::object{{"type", "boolean"}});
  if ((o.type & (MESHWRIGHT_INT | MESHWRIGHT_NUMBER)) != 0) {
    json::object form{{"type", (o.type & MESHWRIGHT_NUMBER) != 0 ? "number" : "integer"}};
    bounds(form, o);
    forms.push_back(std::move(form));
  }
  if ((o.type & MESHWRIGHT_STRING) != 0) forms.push_back(string_form(o));
  if ((o.type & MESHWRIGHT_STRING_LIST) != 0)
    forms.push_back(json::object{{"type", "array"}, {"items", string}});
  if ((o.type & MESHWRIGHT_NUMBER_LIST) != 0) {
    json::object item{{"type", "number"}};
    bounds(item, o);
    forms.push_back(json::object{{"type", "array"}, {"items", item}});
  }
  if ((o.type & MESHWRIGHT_STRING_MAP) != 0)
    forms.push_back(json::object{{"type", "object"}, {"additionalProperties", json::value(true)}});
  if ((o.type & MESHWRIGHT_STRING_TABLE) != 0)
    forms.push_back(json::object{{"type", "array"},
                                 {"items", json::object{{"type", "array"}, {"items", string}}}});
  if ((o.flags & MESHWRIGHT_OPTIONAL) != 0)
    forms.push_back(json::object{{"enum", json::array{"auto", "none"}}});
  json::object out;
  if (forms.size() == 1)
    out = forms[0].as_object();
  else
    out["anyOf"] = std::move(forms);
  out["description"] = o.doc;
  if (o.default_value != nullptr) {
    OptionValue value = default_of(o);
    out["default"] = value.index() == 0 ? json::value("auto") : literal_json(value);
  }
  return out;
}

// The object schema at a dotted path below the root, made when missing.
json::object& object_at(json::object& root, const std::string& table) {
  json::object* at = &root;
  if (table.empty()) return *at;
  for (const std::string& part : text::split(table, '.')) {
    json::object& properties = at->at("properties").as_object();
    if (!properties.contains(part))
      properties[part] = json::object{
          {"type", "object"}, {"additionalProperties", false}, {"properties", json::object{}}};
    at = &properties.at(part).as_object();
  }
  return *at;
}

}  // namespace

boost::json::object json_schema(const PluginSchemas& plugins) {
  json::object root{{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                    {"title", "Meshwright configuration"},
                    {"type", "object"},
                    {"additionalProperties", false},
                    {"properties", json::object{}}};
  auto add = [&](const OptionSchema& schema) {
    json::object& properties = object_at(root, schema.table).at("properties").as_object();
    for (const meshwright_option* option : schema.options)
      if (!properties.contains(option->name)) properties[option->name] = option_schema(*option);
  };
  for (const OptionSchema& schema : all_schemas(plugins)) add(schema);
  // An array of tables: what was made of one of them is that of its items.
  for (const OptionSchema& schema : list_schemas()) {
    json::object& one = object_at(root, schema.table);
    json::object item = one;
    json::array required;  // a key without a default that cannot be left out
    for (const meshwright_option* option : schema.options)
      if (option->default_value == nullptr && (option->flags & MESHWRIGHT_OPTIONAL) == 0)
        required.emplace_back(option->name);
    item["required"] = std::move(required);
    one = json::object{{"type", "array"}, {"items", std::move(item)}};
  }
  // Tables of plugins that this installation does not have may stand in a shared file.
  for (const char* table : {"distributed", "model", "dataset", "validation_dataset"})
    object_at(root, table)["additionalProperties"] = json::object{{"type", "object"}};
  return root;
}

// Keys that have to do with a word: by their name, an older or foreign name, a value they take, or
// their description.

namespace {

enum class Via : uint8_t { whole_name, name, other_name, choices, text, none };
constexpr const char* kVia[] = {"name", "name", "other name", "choices", "text", ""};

// Whether `text` has `word` where a word of its own begins: "len" in "seq_len", but not in
// "silent". Longer words are found anywhere in a name.
bool holds(std::string_view text, const std::string& word, bool anywhere = false) {
  std::string plain = text::normal(text);
  for (size_t at = 0; (at = plain.find(word, at)) != std::string::npos; ++at)
    if (anywhere || at == 0 || !text::is_alphanumeric(plain[at - 1])) return true;
  return false;
}

bool is_dtype(const std::string& word) {
  try {
    parse_dtype(word);
    return true;
  } catch (const Error&) {
    return false;
  }
}

bool takes(const meshwright_option& option, const std::string& word) {
  if ((option.flags & MESHWRIGHT_DTYPE) != 0 && is_dtype(word)) return true;
  std::vector<std::string> choices = text::split_names(option.choices, '|');
  return std::any_of(choices.begin(), choices.end(),
                     [&](const std::string& choice) { return text::normal(choice) == word; });
}

Via how_found(const std::string& key, const meshwright_option& option, const std::string& word) {
  constexpr size_t kLong = 4;
  if (word == option.name) return Via::whole_name;
  if (holds(key, word, word.size() >= kLong)) return Via::name;
  for (const std::string& alias : text::split_names(option.aliases, '|'))
    if (holds(alias.substr(0, alias.find('{')), word, word.size() >= kLong)) return Via::other_name;
  for (const ForeignName& name : foreign_names())
    if (key == name.key && holds(name.name, word)) return Via::other_name;
  if (takes(option, word)) return Via::choices;
  return holds(option.doc, word) ? Via::text : Via::none;
}

}  // namespace

Matches search_options(const std::string& what, const PluginSchemas& plugins) {
  Matches out;
  const ForeignName* foreign = find_foreign(what);
  if (foreign != nullptr) out.told = foreign_text(*foreign, what);
  std::vector<std::string> words = text::split_names(text::normal(what).c_str(), ' ');
  if (words.empty()) return out;
  std::vector<std::pair<Via, Match>> found;
  for (const OptionSchema& schema : all_schemas(plugins))
    for (const meshwright_option* option : schema.options) {
      std::string key = schema.table.empty() ? option->name : schema.table + "." + option->name;
      // Every word has to be found; the weakest of them decides the place. What another program's
      // name stands for comes first.
      Via via = Via::whole_name;
      for (const std::string& word : words) via = std::max(via, how_found(key, *option, word));
      if (foreign != nullptr && key == foreign->key) via = Via::name;
      if (via != Via::none)
        found.emplace_back(via, Match{key, kVia[static_cast<size_t>(via)], schema.owner, option});
    }
  auto first = [&](const Match& match) { return foreign != nullptr && match.key == foreign->key; };
  std::stable_sort(found.begin(), found.end(), [&](const auto& a, const auto& b) {
    return std::pair(!first(a.second), a.first) < std::pair(!first(b.second), b.first);
  });
  for (auto& [via, match] : found) out.keys.push_back(std::move(match));
  return out;
}

namespace {

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
