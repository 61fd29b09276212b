#include <algorithm>
#include <boost/json/array.hpp>
#include <cctype>
#include <iterator>

#include "engine/config/describe.h"
#include "sdk/base/words.h"

namespace meshwright::config {

std::vector<OptionSchema> all_schemas(const PluginSchemas& plugins) {
  std::vector<OptionSchema> out;
  for (OptionSchema& schema : engine_schemas()) {
    out.push_back(std::move(schema));
    for (OptionSchema& list : list_schemas())
      if (list.table.starts_with(out.back().table + ".") && !out.back().table.empty())
        out.push_back(std::move(list));
  }
  for (const StrategySchema& s : plugins.strategies) {
    bool known = false;
    for (OptionSchema& schema : out)
      if (schema.table == s.schema.table) {
        schema.owner += ", " + s.schema.owner;
        known = true;
      }
    if (!known) out.push_back(s.schema);
  }
  for (const PluginSchemas::Component& one : plugins.components) out.push_back(one.schema);
  return out;
}

std::string header_of(const std::string& table) {
  const std::vector<OptionSchema> lists = list_schemas();
  const bool list = std::any_of(lists.begin(), lists.end(),
                                [&](const OptionSchema& schema) { return schema.table == table; });
  return list ? "[[" + table + "]]" : "[" + table + "]";
}

std::string default_text(const meshwright_option& option) {
  return option.default_value == nullptr ? "not set" : option.default_value;
}

namespace {

namespace json = boost::json;

std::string key_of(const OptionSchema& schema, const meshwright_option& option) {
  return schema.table.empty() ? option.name : schema.table + "." + option.name;
}

const ErrorInfo* find_code(const std::string& what) {
  for (const ErrorInfo& info : error_catalog()) {
    std::string code = code_string(info.code), lower = code;
    lower[0] = 'e';
    if (what == code || what == lower || what == info.name) return &info;
  }
  return nullptr;
}

struct Found {
  const ErrorInfo* code = nullptr;
  const OptionSchema* table = nullptr;
  const meshwright_option* option = nullptr;
};

// What `what` names exactly, else an empty Found; `names`: every name that would have been right.
Found find_exactly(const std::string& what, const std::vector<OptionSchema>& schemas,
                   std::vector<std::string>& names) {
  Found found;
  found.code = find_code(what);
  if (found.code != nullptr) return found;
  for (const OptionSchema& schema : schemas) {
    if (schema.table == what && !what.empty()) {
      found.table = &schema;
      return found;
    }
    if (!schema.table.empty()) names.push_back(schema.table);
    for (const meshwright_option* option : schema.options) {
      std::string key = key_of(schema, *option);
      if (key == what) {
        found.table = &schema;
        found.option = option;
        return found;
      }
      names.push_back(key);
      names.emplace_back(option->name);
    }
  }
  // A bare option name is enough where only one table has it.
  for (const OptionSchema& schema : schemas)
    if (const meshwright_option* option = schema.find(what)) {
      if (found.option != nullptr) {
        found = {};
        break;
      }
      found.table = &schema;
      found.option = option;
    }
  for (const ErrorInfo& info : error_catalog()) names.push_back(code_string(info.code));
  return found;
}

Found find(const std::string& what, const std::vector<OptionSchema>& schemas) {
  std::vector<std::string> names;
  Found found = find_exactly(what, schemas, names);
  if (found.code != nullptr || found.table != nullptr) return found;
  Error error(ErrorCode::usage,
              "\"" + what + "\" is no key, table or error code, and no key has to do with it");
  if (std::string near = nearest_name(what, names); !near.empty())
    error.help("did you mean " + near + "?");
  throw error.help("meshwright config explain lists the tables")
      .help("meshwright config explain optimizer.lr explains a key");
}

std::string kind_name(ErrorKind kind) {
  // In the order of ErrorKind.
  static constexpr const char* kNames[] = {"value",           "type", "unknown key", "runtime",
                                           "not implemented", "file", "internal"};
  static_assert(std::size(kNames) == static_cast<size_t>(ErrorKind::internal) + 1);
  return kNames[static_cast<size_t>(kind)];
}

std::string option_text(const OptionSchema& schema, const meshwright_option& option) {
  std::string out = key_of(schema, option) + "\n  " + option.doc + "\n\n";
  out += "  type:     " + describe_type(option) + "\n  default:  " + default_text(option) +
         "\n  owner:    " + schema.owner + "\n";
  if (option.aliases != nullptr) {
    std::string names;
    for (const std::string& alias : text::split(option.aliases, '|'))
      names += (names.empty() ? "" : ", ") + alias.substr(0, alias.find('{'));
    out += "  also:     " + names + "\n";
  }
  if ((option.flags & MESHWRIGHT_NO_EFFECT) != 0)
    out += "  effect:   none here; accepted so that older files load\n";
  std::string example = option.default_value != nullptr             ? option.default_value
                        : (option.flags & MESHWRIGHT_OPTIONAL) != 0 ? "\"none\""
                                                                    : "\"...\"";
  out += "\n  " + (schema.table.empty() ? std::string() : header_of(schema.table) + "\n  ") +
         option.name + " = " + example + "\n";
  return out;
}

json::object option_json(const OptionSchema& schema, const meshwright_option& option) {
  return {
      {"key", key_of(schema, option)},
      {"type", describe_type(option)},
      {"default",
       option.default_value == nullptr ? json::value(nullptr) : json::value(option.default_value)},
      {"owner", schema.owner},
      {"doc", option.doc},
      {"aliases", option.aliases == nullptr ? json::value(nullptr) : json::value(option.aliases)},
      {"has_effect", (option.flags & MESHWRIGHT_NO_EFFECT) == 0}};
}

std::string markdown_cell(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
    text.replace(at, 1, "\\|");
  return text;
}

}  // namespace

std::string explain(const std::string& what, const PluginSchemas& plugins) {
  std::vector<OptionSchema> schemas = all_schemas(plugins);
  if (what.empty()) {
    std::string out = "Tables of a configuration file (meshwright config explain TABLE):\n";
    for (const OptionSchema& schema : schemas)
      if (!schema.table.empty())
        out += "  " + header_of(schema.table) +
               (schema.owner == "engine" ? "" : "  (" + schema.owner + ")") + "\n";
    return out;
  }
  Found found = find(what, schemas);
  if (found.code != nullptr)
    return code_string(found.code->code) + ": " + found.code->title + "\n  " +
           found.code->explanation + "\n\n  kind: " + kind_name(found.code->kind) +
           "\n  exit: " + std::to_string(exit_status(found.code->code)) + "\n";
  if (found.option != nullptr) return option_text(*found.table, *found.option);
  std::string out = header_of(found.table->table) + "  (" + found.table->owner + ")\n";
  for (const meshwright_option* option : found.table->options)
    out += "  " + std::string(option->name) + " = " + default_text(*option) + "\n      " +
           option->doc + "\n";
  return out;
}

boost::json::object explain_json(const std::string& what, const PluginSchemas& plugins) {
  std::vector<OptionSchema> schemas = all_schemas(plugins);
  if (what.empty()) {
    json::array tables;
    for (const OptionSchema& schema : schemas) tables.emplace_back(schema.table);
    return {{"tables", tables}};
  }
  Found found = find(what, schemas);
  if (found.code != nullptr)
    return {{"code", code_string(found.code->code)},
            {"title", found.code->title},
            {"explanation", found.code->explanation},
            {"kind", kind_name(found.code->kind)},
            {"exit", exit_status(found.code->code)}};
  if (found.option != nullptr) return option_json(*found.table, *found.option);
  json::array options;
  for (const meshwright_option* option : found.table->options)
    options.push_back(option_json(*found.table, *option));
  return {{"table", found.table->table}, {"owner", found.table->owner}, {"options", options}};
}

bool is_explained(const std::string& what, const PluginSchemas& plugins) {
  std::vector<std::string> names;
  std::vector<OptionSchema> schemas = all_schemas(plugins);
  Found found = find_exactly(what, schemas, names);
  return what.empty() || found.code != nullptr || found.table != nullptr;
}

boost::json::object search_json(const std::string& what, const Matches& matches) {
  json::array keys;
  for (const Match& match : matches.keys)
    keys.push_back({{"key", match.key},
                    {"found_in", match.via},
                    {"type", describe_type(*match.option)},
                    {"default", match.option->default_value == nullptr
                                    ? json::value(nullptr)
                                    : json::value(match.option->default_value)},
                    {"owner", match.owner},
                    {"doc", match.option->doc}});
  return {{"searched", what},
          {"told", matches.told.empty() ? json::value(nullptr) : json::value(matches.told)},
          {"keys", keys}};
}

std::string reference_markdown(const PluginSchemas& plugins) {
  std::string out =
      "# Reference\n\nMade from the option schemas: `meshwright config explain --reference > "
      "docs/reference.md` refreshes it.\n"
      "`\"none\"` and `\"auto\"` mean *not set* where a type says so; TOML has no null.\n\n";
  for (const OptionSchema& schema : all_schemas(plugins)) {
    out += schema.table.empty() ? "## Top level\n\n" : "## " + header_of(schema.table) + "\n\n";
    if (schema.owner != "engine") out += "Checked by the plugin of: " + schema.owner + ".\n\n";
    out += "| key | type | default | meaning |\n|---|---|---|---|\n";
    for (const meshwright_option* o : schema.options) {
      std::string doc = o->doc;
      if ((o->flags & MESHWRIGHT_NO_EFFECT) != 0) doc += " *Accepted, no effect here.*";
      if (o->aliases != nullptr) {
        doc += " Also";
        for (const std::string& alias : text::split(o->aliases, '|'))
          doc += " `" + alias.substr(0, alias.find('{')) + "`";
        doc += ".";
      }
      out += "| `" + std::string(o->name) + "` | " + markdown_cell(describe_type(*o)) + " | " +
             (o->default_value == nullptr ? std::string("not set")
                                          : "`" + markdown_cell(o->default_value) + "`") +
             " | " + markdown_cell(doc) + " |\n";
    }
    out += "\n";
  }
  out += "## Error codes\n\n| code | exit | what | explanation |\n|---|---|---|---|\n";
  for (const ErrorInfo& info : error_catalog())
    out += "| " + code_string(info.code) + " | " + std::to_string(exit_status(info.code)) + " | " +
           markdown_cell(info.title) + " | " + markdown_cell(info.explanation) + " |\n";
  return out;
}

}  // namespace meshwright::config
