// What a row holds: JSON as Python sees it. Integers of any length and floats keep their text, the
// order of keys is kept, and of a key given twice the last value wins at the first's place.
//
//   Value row = parse_json(line);
//   const Value* messages = row.get("messages");
//
// A Value owns what it holds. Values may be read by several threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace meshwright::chat {

class Value {
 public:
  using List = std::vector<Value>;
  using Member = std::pair<std::string, Value>;
  using Dict = std::vector<Member>;

  Value() = default;  // none
  static Value boolean(bool value);
  static Value integer(int64_t value);
  static Value big_integer(std::string digits);  // optional '-', then digits; kept verbatim
  static Value real(double value);
  static Value string(std::string text);  // UTF-8
  static Value list(List items = {});
  static Value dict(Dict members = {});  // later duplicates overwrite earlier ones in place

  bool is_none() const { return std::holds_alternative<std::monostate>(held_); }
  bool is_boolean() const { return std::holds_alternative<bool>(held_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(held_); }  // fits 64 bits
  bool is_big_integer() const { return std::holds_alternative<Digits>(held_); }
  bool is_real() const { return std::holds_alternative<double>(held_); }
  bool is_string() const { return std::holds_alternative<std::string>(held_); }
  bool is_list() const { return std::holds_alternative<List>(held_); }
  bool is_dict() const { return std::holds_alternative<Dict>(held_); }
  // "null", "a boolean", "a number", "a string", "a list", "an object": for messages.
  std::string_view kind_name() const;

  // Each asks that the value is of that kind.
  bool as_boolean() const { return std::get<bool>(held_); }
  int64_t as_integer() const { return std::get<int64_t>(held_); }
  const std::string& as_digits() const { return std::get<Digits>(held_).text; }
  double as_real() const { return std::get<double>(held_); }
  const std::string& as_string() const { return std::get<std::string>(held_); }
  const List& as_list() const { return std::get<List>(held_); }
  List& as_list() { return std::get<List>(held_); }
  const Dict& as_dict() const { return std::get<Dict>(held_); }

  // The member of that name; nullptr if there is none or this is not a dict.
  const Value* get(std::string_view key) const;
  // Adds a member, or replaces it in its place. Of dicts only.
  void set(std::string key, Value value);
  void push_back(Value value) { as_list().push_back(std::move(value)); }

 private:
  struct Digits {
    std::string text;
  };
  std::variant<std::monostate, bool, int64_t, Digits, double, std::string, List, Dict> held_;
};

// One JSON value and nothing after it. Throws Error(bad_dataset) "LINE:COLUMN: what is wrong", both
// counted from 1 within `text`. Nesting beyond 200 is refused, as are NaN and lone surrogates.
Value parse_json(std::string_view text);

// Python's str() of a float: the shortest digits that read back the same, "1.0", "1e-05", "1e+16".
std::string python_float(double value);

// Whether a role may stand in a row: [A-Za-z0-9_-]+.
bool is_role(std::string_view role);

}  // namespace meshwright::chat
