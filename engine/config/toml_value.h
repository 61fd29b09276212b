// The parsed file as plain values that know their place. toml++ stays behind parse_toml(): it costs
// seconds a file that includes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/options.h"

namespace meshwright::config {

// Line and column count from 1, columns in characters; 0 = unknown.
struct Place {
  Origin::Source source = Origin::Source::file;
  int line = 0;
  int column = 0;
};

struct Entry;

struct Value {
  enum class Kind : uint8_t { boolean, integer, number, string, date, list, table };
  Kind kind = Kind::table;
  Place place;
  bool boolean = false;
  int64_t integer = 0;
  double number = 0;
  std::string text;  // of a string; of a date as written
  // What stood right of '=' in --set when TOML reads it as a date, a number or a boolean: an option
  // that takes strings and none of these takes this text instead.
  std::string typed;
  std::vector<Value> items;
  std::vector<Entry> entries;  // in file order

  Value() = default;
  explicit Value(std::string string_text);

  Entry* find(std::string_view key);
  const Entry* find(std::string_view key) const;
  bool is_table() const { return kind == Kind::table; }
  // The value where a string is wanted: a string, or what was typed after --set KEY= without
  // quotes. nullptr for anything else.
  const std::string* as_text() const;
};

struct Entry {
  std::string key;
  Place place;  // of the key
  Value value;
};

// Values that stand nowhere; a string is Value(text).
Value boolean_value(bool on);
Value integer_value(int64_t integer);
Value number_value(double number);
// Of an integer or a number.
double as_number(const Value& value);

// nullopt after a syntax error, which goes to `diagnostics` with its place in `file`.
std::optional<Value> parse_toml(std::string_view text, const std::string& file,
                                Diagnostics& diagnostics);
// One value as it stands right of '='; nullopt when the text is not exactly that (`why` then holds
// the parser's words).
std::optional<Value> parse_toml_value(std::string_view text, std::string* why = nullptr);

// The value as TOML on one line.
std::string to_toml(const Value& value);
// A dotted key as parts, or nullopt: bare words, "..." and '...'. The inverse of `join_key`.
std::optional<std::vector<std::string>> split_key(std::string_view key);
// "a" + "b" = "a.b"; a part that is no bare word is quoted.
std::string join_key(std::string_view table, std::string_view name);

// As an option's value; nullopt for a date, a mixed list and what else no option takes. Tables of
// strings flatten their dotted keys: model.layers = "x" is the pattern "model.layers". Booleans,
// numbers and lists in them are their JSON texts.
std::optional<OptionValue> to_option_value(const Value& value);
// At most `most` bytes, the last three of them dots where something was cut off; never within a
// character.
std::string shortened(std::string text, size_t most);
// "a date 1979-05-27", "a list of mixed types [1, \"a\"]": what was found, for messages.
std::string found_text(const Value& value);

// Syntax errors that say how to mend the line, and limits that keep a hostile file from exhausting
// the parser.

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr int kMaxDepth = 32;  // of nested lists and tables, and of the parts of one key

struct SyntaxProblem {
  std::string what;
  Place place;
};

// Nesting and dotted keys deeper than kMaxDepth: the parser would recurse as deep.
std::optional<SyntaxProblem> check_limits(std::string_view text);
// E0201 at the place where it can be mended, with the corrected line as help where the mistake is a
// common one.
Error syntax_error(const SyntaxProblem& problem, std::string_view text, const std::string& file);

}  // namespace meshwright::config
