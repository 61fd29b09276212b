// The configuration told: explained, as a JSON schema, and as it was resolved. Long because all of
// it walks the same schemas, tables and lists.
#include "engine/config/describe.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/value_from.hpp>
#include <iterator>
#include <type_traits>

#include "engine/config/foreign.h"
#include "engine/config/source.h"
#include "engine/config/sources.h"
#include "engine/config/toml_value.h"
#include "meshwright/dtype.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"

namespace meshwright::config {

namespace json = boost::json;

std::vector<OptionSchema> all_schemas(const PluginSchemas& plugins) {
  std::vector<OptionSchema> out;
  for (OptionSchema& schema : engine_schemas()) {
    out.push_back(std::move(schema));
    for (OptionSchema& list : list_schemas())
      if (list.table.starts_with(out.back().table + ".") && !out.back().table.empty())
        out.push_back(std::move(list));
  }
  for (const StrategySchema& s : plugins.strategies) {
    auto known = std::ranges::find(out, s.schema.table, &OptionSchema::table);
    if (known == out.end())
      out.push_back(s.schema);
    else
      known->owner += ", " + s.schema.owner;
  }
  for (const PluginSchemas::Component& one : plugins.components) out.push_back(one.schema);
  return out;
}

std::string header_of(const std::string& table) {
  return is_list(table) ? "[[" + table + "]]" : "[" + table + "]";
}

std::string default_text(const meshwright_option& option) {
  return option.default_value == nullptr ? "not set" : option.default_value;
}

std::string key_of(const OptionSchema& schema, const meshwright_option& option) {
  return schema.table.empty() ? option.name : schema.table + "." + option.name;
}

namespace {

json::value text_or_null(const char* text) {
  return text == nullptr ? json::value(nullptr) : json::value(text);
}

// An option's older names, without what their values mean.
std::vector<std::string> other_names(const meshwright_option& option) {
  std::vector<std::string> out = text::split_names(option.aliases, '|');
  for (std::string& name : out) name = name.substr(0, name.find('{'));
  return out;
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
  bool any() const { return code != nullptr || table != nullptr; }
};

// What `what` names exactly, else an empty Found; `names`: every name that would have been right.
Found find_exactly(const std::string& what, const std::vector<OptionSchema>& schemas,
                   std::vector<std::string>& names) {
  if (const ErrorInfo* code = find_code(what)) return {.code = code};
  for (const OptionSchema& schema : schemas) {
    if (schema.table == what && !what.empty()) return {.table = &schema};
    if (!schema.table.empty()) names.push_back(schema.table);
    for (const meshwright_option* option : schema.options) {
      std::string key = key_of(schema, *option);
      if (key == what) return {.table = &schema, .option = option};
      names.push_back(key);
      names.emplace_back(option->name);
    }
  }
  for (const ErrorInfo& info : error_catalog()) names.push_back(code_string(info.code));
  // What one source of a mix is told, [dataset.mix.jsonl], is what all are.
  if (const std::string of_all = table_of_all(what); !of_all.empty())
    if (const Found found = find_exactly(of_all, schemas, names);
        found.table != nullptr && found.table->table.find('.') != std::string::npos)
      return found;
  // A bare option name is enough where only one table has it.
  Found found;
  for (const OptionSchema& schema : schemas)
    if (const meshwright_option* option = schema.find(what)) {
      if (found.any()) return {};
      found = {.table = &schema, .option = option};
    }
  return found;
}

Found find(const std::string& what, const std::vector<OptionSchema>& schemas) {
  std::vector<std::string> names;
  Found found = find_exactly(what, schemas, names);
  if (found.any()) return found;
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

// What a choice means, where the key's own text does not say it.
struct Meaning {
  std::string_view key, choice, what;
};
constexpr Meaning kMeanings[] = {
    {"optimizer.name", "adamw", "Adam with decoupled weight decay; betas and eps"},
    {"optimizer.name", "sgd", "gradient descent, with momentum if that is above 0"},
    {"optimizer.no_decay", "none", "every parameter decays"},
    {"optimizer.no_decay", "norms_and_biases", "parameters of one dimension do not decay"},
    {"lr_scheduler.lr_decay_style", "constant", "no decay"},
    {"lr_scheduler.lr_decay_style", "linear", "in a straight line to min_lr"},
    {"lr_scheduler.lr_decay_style", "cosine", "along half a cosine to min_lr"},
    {"lr_scheduler.lr_decay_style", "wsd", "constant, then to min_lr over the last 10%"},
    {"dist_env.device", "auto", "GPUs where LibTorch finds some, else the CPU"},
    {"dist_env.backend", "auto", "nccl on GPUs, else gloo"},
    {"checkpoint.on_failure", "stop", "the run ends with the error"},
    {"checkpoint.on_failure", "continue", "the run goes on and tells of it"},
    {"checkpoint.export", "final", "beside the last checkpoint"},
    {"checkpoint.export", "every", "beside each checkpoint"},
    {"distributed.context.load_balancer", "headtail",
     "a chunk from the head and one from the tail"},
    {"distributed.context.load_balancer", "none", "one piece, in order"},
};

struct Choice {
  std::string word, what;
};
// What may stand there, each with what it means if that is known; of distributed.strategy the
// strategies of the plugins that were found. Empty: it is no enumeration.
std::vector<Choice> choices_of(const std::string& key, const meshwright_option& option,
                               const PluginSchemas& plugins) {
  std::vector<Choice> out;
  if (key == "distributed.strategy")
    for (const StrategySchema& one : plugins.strategies)
      out.push_back(
          {one.strategy, one.aliases.empty() ? "" : "also " + text::join(one.aliases, ", ")});
  if (option.choices == nullptr) return out;
  for (const std::string& word : text::split(option.choices, '|')) {
    const auto found = std::ranges::find_if(
        kMeanings, [&](const Meaning& one) { return one.key == key && one.choice == word; });
    out.push_back({word, found == std::end(kMeanings) ? std::string() : std::string(found->what)});
  }
  return out;
}

// A line for each.
std::string choice_lines(const std::vector<Choice>& choices, const meshwright_option& option,
                         const std::string& indent) {
  size_t width = 0;
  for (const Choice& one : choices) width = std::max(width, one.word.size());
  std::string out;
  for (const auto& [word, what] : choices) {
    const std::string quoted = '"' + word + '"';
    const bool usual = option.default_value != nullptr && quoted == option.default_value;
    std::string said = what + (usual ? (what.empty() ? "the default" : " (the default)") : "");
    if (!said.empty()) said.insert(0, width - word.size() + 2, ' ');
    out += indent + quoted + said + "\n";
  }
  return out;
}

std::string option_text(const OptionSchema& schema, const meshwright_option& option,
                        const PluginSchemas& plugins) {
  std::string out = key_of(schema, option) + "\n  " + option.doc + "\n\n";
  out += "  type:     " + describe_type(option) + "\n  default:  " + default_text(option) +
         "\n  owner:    " + schema.owner + "\n";
  if (const std::vector<Choice> choices = choices_of(key_of(schema, option), option, plugins);
      !choices.empty())
    out += "  choices:\n" + choice_lines(choices, option, "    ");
  if (option.aliases != nullptr)
    out += "  also:     " + text::join(other_names(option), ", ") + "\n";
  if ((option.flags & MESHWRIGHT_NO_EFFECT) != 0)
    out += "  effect:   none here; accepted so that older files load\n";
  std::string example = option.default_value != nullptr             ? option.default_value
                        : (option.flags & MESHWRIGHT_OPTIONAL) != 0 ? "\"none\""
                                                                    : "\"...\"";
  out += "\n  " + (schema.table.empty() ? std::string() : header_of(schema.table) + "\n  ") +
         option.name + " = " + example + "\n";
  return out;
}

json::object option_json(const OptionSchema& schema, const meshwright_option& option,
                         const PluginSchemas& plugins) {
  json::array choices;
  for (const Choice& one : choices_of(key_of(schema, option), option, plugins))
    choices.emplace_back(one.word);
  return {{"key", key_of(schema, option)},
          {"type", describe_type(option)},
          {"choices", std::move(choices)},
          {"default", text_or_null(option.default_value)},
          {"owner", schema.owner},
          {"doc", option.doc},
          {"aliases", text_or_null(option.aliases)},
          {"has_effect", (option.flags & MESHWRIGHT_NO_EFFECT) == 0}};
}

std::string markdown_cell(std::string text) {  // a bar would end the cell, <name> is a tag
  for (size_t at = 0; (at = text.find_first_of("|<", at)) != std::string::npos; at += 2)
    text.insert(at, 1, '\\');
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
  if (found.option != nullptr) return option_text(*found.table, *found.option, plugins);
  std::string out = header_of(found.table->table) + "  (" + found.table->owner + ")\n";
  for (const meshwright_option* option : found.table->options)
    out += "  " + std::string(option->name) + " = " + default_text(*option) + "\n      " +
           option->doc + "\n" +
           choice_lines(choices_of(key_of(*found.table, *option), *option, plugins), *option,
                        "        ");
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
  if (found.option != nullptr) return option_json(*found.table, *found.option, plugins);
  json::array options;
  for (const meshwright_option* option : found.table->options)
    options.push_back(option_json(*found.table, *option, plugins));
  return {{"table", found.table->table}, {"owner", found.table->owner}, {"options", options}};
}

bool is_explained(const std::string& what, const PluginSchemas& plugins) {
  std::vector<std::string> names;
  const std::vector<OptionSchema> schemas = all_schemas(plugins);
  return what.empty() || find_exactly(what, schemas, names).any();
}

boost::json::object search_json(const std::string& what, const Matches& matches) {
  json::array keys;
  for (const Match& match : matches.keys)
    keys.push_back({{"key", match.key},
                    {"found_in", match.via},
                    {"type", describe_type(*match.option)},
                    {"default", text_or_null(match.option->default_value)},
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
        for (const std::string& name : other_names(*o)) doc += " `" + name + "`";
        doc += ".";
      }
      out +=
          "| `" + std::string(o->name) + "` | " + markdown_cell(describe_type(*o)) + " | " +
          (o->default_value == nullptr ? "not set" : "`" + markdown_cell(o->default_value) + "`") +
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

namespace {

json::value value_json(const OptionValue& value) {
  return std::visit(
      []<class T>(const T& v) -> json::value {
        if constexpr (std::is_same_v<T, std::monostate>) {
          return nullptr;
        } else if constexpr (std::is_same_v<T, StringMap>) {
          json::object out;
          for (const auto& [key, text] : v) out[key] = text;
          return out;
        } else {
          return json::value_from(v);
        }
      },
      value);
}

void bounds(json::object& out, const meshwright_option& o) {
  if ((o.flags & MESHWRIGHT_NO_MIN) == 0)
    out[(o.flags & MESHWRIGHT_OPEN_MIN) != 0 ? "exclusiveMinimum" : "minimum"] = o.min;
  if ((o.flags & MESHWRIGHT_NO_MAX) == 0) out["maximum"] = o.max;
}

json::object string_form(const meshwright_option& o) {
  json::object out{{"type", "string"}};
  // A dtype has several names, of which the choices are one each.
  if (o.choices != nullptr && (o.flags & (MESHWRIGHT_IGNORE_CASE | MESHWRIGHT_DTYPE)) == 0)
    out["enum"] = json::value_from(text::split(o.choices, '|'));
  return out;
}

// One option as JSON Schema; interpolated strings are allowed wherever a string is.
json::object option_schema(const meshwright_option& o) {
  auto type = [](const char* name) { return json::object{{"type", name}}; };
  auto array = [](json::object items) {
    return json::object{{"type", "array"}, {"items", std::move(items)}};
  };
  auto bounded = [&](const char* name) {
    json::object form = type(name);
    bounds(form, o);
    return form;
  };
  json::array forms;
  if ((o.type & MESHWRIGHT_BOOL) != 0) forms.push_back(type("boolean"));
  if ((o.type & (MESHWRIGHT_INT | MESHWRIGHT_NUMBER)) != 0)
    forms.push_back(bounded((o.type & MESHWRIGHT_NUMBER) != 0 ? "number" : "integer"));
  if ((o.type & MESHWRIGHT_STRING) != 0) forms.push_back(string_form(o));
  if ((o.type & MESHWRIGHT_STRING_LIST) != 0) forms.push_back(array(type("string")));
  if ((o.type & MESHWRIGHT_NUMBER_LIST) != 0) forms.push_back(array(bounded("number")));
  if ((o.type & MESHWRIGHT_STRING_MAP) != 0)
    forms.push_back(json::object{{"type", "object"}, {"additionalProperties", json::value(true)}});
  if ((o.type & MESHWRIGHT_STRING_TABLE) != 0) forms.push_back(array(array(type("string"))));
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
    out["default"] = value.index() == 0 ? json::value("auto") : value_json(value);
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
    // Options that a plugin has for this source alone.
    if (schema.table != kGroupTable)
      item["additionalProperties"] = json::object{{"type", "object"}};
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
  for (const std::string& name : other_names(option))
    if (holds(name, word, word.size() >= kLong)) return Via::other_name;
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
      std::string key = key_of(schema, *option);
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

// What was given of a table: pattern = "a.*", frozen = true.
std::string given_toml(const Options& table) {
  std::string out;
  for (const meshwright_option* option : table.schema().options)
    if (table.is_given(option->name))
      out += (out.empty() ? "" : ", ") + std::string(option->name) + " = " +
             (table.is_set(option->name) ? value_text(table.value(option->name)) : kNotSet);
  return out;
}

// A list as one value: [{pattern = "a.*", frozen = true}].
std::string list_toml(const Config& config, const std::string& list) {
  const std::vector<Options>& tables = config.list(list);
  std::string out = "[";
  for (size_t i = 0; i < tables.size(); ++i) {
    out += (i > 0 ? ", {" : "{") + given_toml(tables[i]);
    for (const auto& [name, own] : lists_below_tables(config, list))
      if (says_any((*own)[i])) out += ", " + name + " = {" + given_toml((*own)[i]) + "}";
    out += "}";
  }
  return out + "]";
}

// `given`: nothing else, where a default would be in place of another table's value.
void add_rows(const Options& table, bool with_origins, std::string& out, bool given = false) {
  for (const meshwright_option* option : table.schema().options) {
    if (given && !table.is_given(option->name)) continue;
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

json::object rows_json(const Options& table, bool given = false) {
  json::object rows;
  for (const meshwright_option* option : table.schema().options) {
    if (given && !table.is_given(option->name)) continue;
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
  for (const OptionSchema& list : list_schemas()) {
    known.push_back(list.table);
    if (list.table == key) return list_toml(config, key);
  }
  for (const std::string& name : table_order(config)) {
    const Options& table = config.table(name);
    for (const meshwright_option* option : table.schema().options) {
      known.push_back(key_of(table.schema(), *option));
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
      for (size_t i = 0; i < tables->size(); ++i) {
        out += "\n[[" + list + "]]\n";
        // What a source does not say, "none" would take from it.
        add_rows((*tables)[i], with_origins, out, /*given=*/list != kGroupTable);
        for (const auto& [below, own] : lists_below_tables(config, list)) {
          if (!says_any((*own)[i])) continue;
          out += "\n[" + list_below(list, below) + "]\n";
          add_rows((*own)[i], with_origins, out, /*given=*/true);
        }
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
      for (size_t i = 0; i < tables->size(); ++i) {
        json::object one = rows_json((*tables)[i]);
        for (const auto& [below, own] : lists_below_tables(config, list))
          if (says_any((*own)[i])) one[below] = rows_json((*own)[i], /*given=*/true);
        all.push_back(std::move(one));
      }
      out[list] = std::move(all);
    }
  }
  return out;
}

}  // namespace meshwright::config
