#include "engine/config/toml_value.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "sdk/base/plain_text.h"
#include "sdk/base/words.h"

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

// Not in the class: the size of an Entry, which holds a Value, is known only below it.
Value::Value(std::string string_text) : kind(Kind::string), text(std::move(string_text)) {}

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

namespace {

// Skips a string that starts at `i`; returns the index behind it (or the end of the text).
size_t skip_string(std::string_view text, size_t i) {
  const char quote = text[i];
  const std::string triple(3, quote);
  if (text.substr(i, 3) == triple) {
    for (i += 3; i < text.size(); ++i) {
      if (quote == '"' && text[i] == '\\') {
        ++i;
      } else if (text.substr(i, 3) == triple) {
        i += 3;
        // A string may end in quotes of its own: """a"""" and """a""""".
        for (int extra = 0; extra < 2 && i < text.size() && text[i] == quote; ++extra) ++i;
        return i;
      }
    }
    return text.size();
  }
  for (++i; i < text.size() && text[i] != '\n'; ++i) {
    if (quote == '"' && text[i] == '\\')
      ++i;
    else if (text[i] == quote)
      return i + 1;
  }
  return std::min(i, text.size());
}

Place place_at(std::string_view text, size_t offset) {
  Place place{Origin::Source::file, 1, 1};
  for (size_t i = 0; i < offset && i < text.size(); ++i) {
    if (text[i] == '\n')
      ++place.line, place.column = 1;
    else if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80)
      ++place.column;
  }
  return place;
}

std::string_view line_at(std::string_view text, int line) {
  for (int i = 1; i < line; ++i) {
    size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  return text.substr(0, text.find_first_of("\r\n"));
}

int column_of(std::string_view line, size_t offset) { return place_at(line, offset).column; }

bool printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f; });
}

// The value as it was probably meant, for a word that is not TOML; "" when there is no good guess.
std::string meant_value(std::string_view word) {
  std::string lower = text::normal(word);
  if (lower == "true" || lower == "yes" || lower == "on") return "true";
  if (lower == "false" || lower == "no" || lower == "off") return "false";
  if (lower == "null" || lower == "none" || lower == "nil" || lower == "~") return "\"none\"";
  const bool word_like = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return text::is_alphanumeric(c) || std::string_view("_-./*:").find(c) != std::string_view::npos;
  });
  if (!word_like) return "";
  if (std::isdigit(static_cast<unsigned char>(word[0]))) {
    size_t zeros = word.find_first_not_of('0');
    std::string digits = zeros == std::string_view::npos ? "0" : std::string(word.substr(zeros));
    if (text::to_number(digits)) return digits;
  }
  return '"' + std::string(word) + '"';
}

// `key = word` whose value does not parse: where the value stands, and the line as it should be.
bool mend_value(std::string_view line, const Place& place, Error& error, Place& better) {
  size_t equals = line.find('=');
  if (equals == std::string_view::npos || column_of(line, equals) > place.column) return false;
  std::string_view key = text::trim(line.substr(0, equals));
  size_t begin = line.find_first_not_of(" \t", equals + 1);
  if (begin == std::string_view::npos || key.empty() || !printable(key)) return false;
  std::string_view word = text::trim(line.substr(begin, line.find('#', begin) - begin));
  if (word.find('=') != std::string_view::npos || !printable(word)) return false;
  std::string value = meant_value(word);
  if (value.empty() || value == word) return false;
  if (parse_toml_value(word)) return false;
  error.help("write " + std::string(key) + " = " + value);
  better.column = column_of(line, begin);
  return true;
}

}  // namespace

std::optional<SyntaxProblem> check_limits(std::string_view text) {
  int depth = 0, dots = 0;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"' || c == '\'') {
      i = skip_string(text, i);
      continue;
    }
    if (c == '#') {
      i = std::min(text.find('\n', i), text.size());
      continue;
    }
    if (c == '.') {
      if (++dots >= kMaxDepth)
        return SyntaxProblem{"a key of more than " + std::to_string(kMaxDepth) + " parts",
                             place_at(text, i)};
    } else if (std::string_view("=,[]{}\n").find(c) != std::string_view::npos) {
      dots = 0;
    }
    if (c == '[' || c == '{') {
      if (++depth > kMaxDepth)
        return SyntaxProblem{"nested deeper than " + std::to_string(kMaxDepth) + " levels",
                             place_at(text, i)};
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
    ++i;
  }
  return std::nullopt;
}

Error syntax_error(const SyntaxProblem& problem, std::string_view text, const std::string& file) {
  std::string what = problem.what;
  if (constexpr std::string_view lead = "Error while "; what.starts_with(lead))
    what = what.substr(lead.size());
  Place place = problem.place;
  std::string_view line = line_at(text, place.line);
  Error error(ErrorCode::toml_syntax, "not valid TOML: " + what);
  if (what.find("cannot redefine") != std::string::npos) {
    // The parser reports the end of the second definition; its key is what a reader looks for.
    place.column = column_of(line, std::min(line.find_first_not_of(" \t"), line.size()));
    error.help("remove one of the two definitions; a key or table may stand only once");
  } else if (what.find("not representable in 64 bits") != std::string::npos) {
    error.help("integers go from -9223372036854775808 to 9223372036854775807");
  } else if (what.find("utf-8") != std::string::npos || what.find("\\u0000") != std::string::npos) {
    error.help("save the file as plain UTF-8 text");
  } else if (what.find("inline table") != std::string::npos) {
    error.help(
        "write an inline table on one line, { a = 1, b = 2 }, or as a section [table] with one key "
        "a line");
  } else if (!mend_value(line, place, error, place)) {
    if (line.find('=') == std::string_view::npos && line.find(':') != std::string_view::npos &&
        printable(line)) {
      std::string_view key = text::trim(line.substr(0, line.find(':')));
      error.help("TOML writes key = value, not key: value" +
                 (key.empty() ? "" : " (" + std::string(key) + " = ...)"));
    } else if (what.find("parsing key") != std::string::npos &&
               line.find('*') != std::string_view::npos) {
      error.help(
          "quote a key that holds other characters than A-Z a-z 0-9 _ -, for example "
          "\"model.layers.*.self_attn.q_proj\" = \"colwise\"");
    } else {
      error.help(
          "strings need quotes, true and false are lower-case, a table starts with [name], one key "
          "= value a line");
    }
  }
  return error.at({Origin::Source::file, file, place.line, place.column});
}

}  // namespace meshwright::config
