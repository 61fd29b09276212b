#include <boost/json/array.hpp>

#include "engine/config/describe.h"
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

}  // namespace meshwright::config
