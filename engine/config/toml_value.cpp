#include "engine/config/toml_value.h"

#include <algorithm>
#include <cmath>

#include "sdk/base/plain_text.h"

namespace meshwright::config {
namespace {

bool is_bare(std::string_view part) {
  return !part.empty() && std::all_of(part.begin(), part.end(), [](char c) {
    return text::is_alphanumeric(c) || c == '_' || c == '-';
  });
}

struct Pattern {
  std::string name, style;
  Place place;
};

// A value as JSON; nullopt of what has none: a date, nan, a table within a list.
std::optional<std::string> json_text(const Value& value) {
  switch (value.kind) {
    case Value::Kind::number: {
      if (!std::isfinite(value.number)) return std::nullopt;
      std::string text = to_toml(value);
      return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
    }
    case Value::Kind::boolean:
    case Value::Kind::integer:
    case Value::Kind::string:
      return to_toml(value);
    case Value::Kind::list: {
      std::string out = "[";
      for (const Value& item : value.items) {
        std::optional<std::string> text = json_text(item);
        if (!text) return std::nullopt;
        out += (out.size() > 1 ? ", " : "") + *text;
      }
      return out + "]";
    }
    case Value::Kind::date:
    case Value::Kind::table:
      break;
  }
  return std::nullopt;
}

// In a table of strings false, 3 and [1, 2] are written as the texts "false", "3" and "[1, 2]".
std::optional<std::string> as_string(const Value& value) {
  return value.kind == Value::Kind::string ? value.text : json_text(value);
}

// Dotted keys of a table of strings are nested tables to the parser; a pattern wants them as one
// name.
bool flatten(const Value& table, const std::string& prefix, std::vector<Pattern>& out) {
  for (const Entry& entry : table.entries) {
    std::string name = prefix.empty() ? entry.key : prefix + "." + entry.key;
    if (entry.value.is_table()) {
      if (!flatten(entry.value, name, out)) return false;
    } else if (std::optional<std::string> text = as_string(entry.value)) {
      out.push_back({std::move(name), std::move(*text), entry.place});
    } else {
      return false;
    }
  }
  return true;
}

template <class T, class Get>
std::vector<T> items_as(const Value& list, Get&& get) {
  std::vector<T> out;
  for (const Value& item : list.items) out.push_back(get(item));
  return out;
}

bool all_of_kind(const Value& list, Value::Kind a, Value::Kind b) {
  return std::all_of(list.items.begin(), list.items.end(),
                     [&](const Value& v) { return v.kind == a || v.kind == b; });
}

std::optional<OptionValue> list_value(const Value& list) {
  using Kind = Value::Kind;
  auto text = [](const Value& v) { return v.text; };
  if (all_of_kind(list, Kind::string, Kind::string)) return items_as<std::string>(list, text);
  if (all_of_kind(list, Kind::integer, Kind::number)) {
    auto numbers = items_as<double>(list, as_number);
    if (!std::all_of(numbers.begin(), numbers.end(), [](double d) { return std::isfinite(d); }))
      return std::nullopt;
    return numbers;
  }
  if (!all_of_kind(list, Kind::list, Kind::list)) return std::nullopt;
  for (const Value& row : list.items)
    if (!all_of_kind(row, Kind::string, Kind::string)) return std::nullopt;
  return items_as<std::vector<std::string>>(
      list, [&](const Value& row) { return items_as<std::string>(row, text); });
}

}  // namespace

Value::Value() = default;
Value::Value(std::string string_text) : kind(Kind::string), text(std::move(string_text)) {}
Value::Value(const Value&) = default;
Value::Value(Value&&) noexcept = default;
Value& Value::operator=(const Value&) = default;
Value& Value::operator=(Value&&) noexcept = default;
Value::~Value() = default;

Entry* Value::find(std::string_view key) {
  for (Entry& entry : entries)
    if (entry.key == key) return &entry;
  return nullptr;
}
const Entry* Value::find(std::string_view key) const { return const_cast<Value*>(this)->find(key); }

const std::string* Value::as_text() const {
  if (kind == Kind::string) return &text;
  return typed.empty() ? nullptr : &typed;
}

Value boolean_value(bool on) {
  Value out;
  out.kind = Value::Kind::boolean;
  out.boolean = on;
  return out;
}

Value integer_value(int64_t integer) {
  Value out;
  out.kind = Value::Kind::integer;
  out.integer = integer;
  return out;
}

Value number_value(double number) {
  Value out;
  out.kind = Value::Kind::number;
  out.number = number;
  return out;
}

double as_number(const Value& value) {
  return value.kind == Value::Kind::integer ? static_cast<double>(value.integer) : value.number;
}

std::string to_toml(const Value& value) {
  switch (value.kind) {
    case Value::Kind::boolean:
      return meshwright::to_toml(OptionValue(value.boolean));
    case Value::Kind::integer:
      return meshwright::to_toml(OptionValue(value.integer));
    case Value::Kind::number:
      return meshwright::to_toml(OptionValue(value.number));
    case Value::Kind::string:
      return meshwright::to_toml(OptionValue(value.text));
    case Value::Kind::date:
      return value.text;
    case Value::Kind::list: {
      std::string out = "[";
      for (const Value& item : value.items) out += (out.size() > 1 ? ", " : "") + to_toml(item);
      return out + "]";
    }
    case Value::Kind::table: {
      std::string out = "{";
      for (const Entry& entry : value.entries)
        out +=
            (out.size() > 1 ? ", " : "") + join_key("", entry.key) + " = " + to_toml(entry.value);
      return out + "}";
    }
  }
  return "";
}

std::optional<std::vector<std::string>> split_key(std::string_view key) {
  std::vector<std::string> parts;
  for (size_t i = 0;;) {
    while (i < key.size() && (key[i] == ' ' || key[i] == '\t')) ++i;
    size_t begin = i;
    if (i < key.size() && (key[i] == '"' || key[i] == '\'')) {
      size_t end = key.find(key[i], i + 1);
      if (end == std::string_view::npos) return std::nullopt;
      parts.emplace_back(key.substr(begin + 1, end - begin - 1));
      i = end + 1;
    } else {
      while (i < key.size() && is_bare(key.substr(i, 1))) ++i;
      if (i == begin) return std::nullopt;
      parts.emplace_back(key.substr(begin, i - begin));
    }
    while (i < key.size() && (key[i] == ' ' || key[i] == '\t')) ++i;
    if (i == key.size()) return parts;
    if (key[i++] != '.') return std::nullopt;
  }
}

std::string join_key(std::string_view table, std::string_view name) {
  std::string part =
      is_bare(name) ? std::string(name) : meshwright::to_toml(OptionValue(std::string(name)));
  return table.empty() ? part : std::string(table) + "." + part;
}

std::optional<OptionValue> to_option_value(const Value& value) {
  switch (value.kind) {
    case Value::Kind::boolean:
      return OptionValue(value.boolean);
    case Value::Kind::integer:
      return OptionValue(value.integer);
    case Value::Kind::number:
      if (!std::isfinite(value.number)) return std::nullopt;
      return OptionValue(value.number);
    case Value::Kind::string:
      return OptionValue(value.text);
    case Value::Kind::date:
      return std::nullopt;
    case Value::Kind::list:
      return list_value(value);
    case Value::Kind::table: {
      std::vector<Pattern> patterns;
      if (!flatten(value, "", patterns)) return std::nullopt;
      // What --set added has no line and comes last.
      std::stable_sort(patterns.begin(), patterns.end(), [](const Pattern& a, const Pattern& b) {
        if ((a.place.line == 0) != (b.place.line == 0)) return b.place.line == 0;
        return a.place.line != b.place.line ? a.place.line < b.place.line
                                            : a.place.column < b.place.column;
      });
      StringMap map;
      for (Pattern& pattern : patterns)
        map.emplace_back(std::move(pattern.name), std::move(pattern.style));
      return map;
    }
  }
  return std::nullopt;
}

std::string shortened(std::string text, size_t most) {
  if (text.size() <= most) return text;
  size_t cut = most - 3;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  return text.substr(0, cut) + "...";
}

std::string found_text(const Value& value) {
  std::string text = shortened(to_toml(value), 60);
  switch (value.kind) {
    case Value::Kind::boolean:
      return "a boolean " + text;
    case Value::Kind::integer:
      return "an integer " + text;
    case Value::Kind::number:
      return (std::isfinite(value.number) ? "a float " : "the float ") + text;
    case Value::Kind::string:
      return "a string " + text;
    case Value::Kind::date:
      return "a date " + text;
    case Value::Kind::list: {
      const char* what = "a list of mixed types ";
      if (!value.items.empty()) {
        Value::Kind first = value.items[0].kind;
        if (all_of_kind(value, first, first)) what = "a list ";
      }
      return what + text;
    }
    case Value::Kind::table:
      return "a table " + text;
  }
  return text;
}

}  // namespace meshwright::config
