// Small text helpers of the SDK library. Not public.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/options.h"

namespace meshwright::text {

std::string_view trim(std::string_view text);  // without white space at both ends
std::vector<std::string_view> split(std::string_view text, char separator);
// Lower case, '-' as '_': how names compare.
std::string normal(std::string_view text);
// A TOML basic string with its escapes.
std::string quote(std::string_view text);
bool is_identifier(std::string_view text);  // [a-z][a-z0-9_]*
// "a.b.c" lies under "", "a" and "a.b", not under "a.b.c".
bool lies_under(std::string_view name, std::string_view module);
// A literal as it stands in an option's default: true, 2, 1e-8, "auto", ["a", "b"], [0.9, 0.95].
std::optional<OptionValue> parse_literal(std::string_view text);

template <class Range>
std::string join(const Range& parts, std::string_view separator) {
  std::string out;
  bool first = true;
  for (const auto& part : parts) {
    if (!first) out += separator;
    out += part;
    first = false;
  }
  return out;
}

template <class Range, class Print>
std::string list(const Range& items, Print&& print) {
  std::vector<std::string> parts;
  for (const auto& item : items) parts.push_back(print(item));
  return "[" + join(parts, ", ") + "]";
}

}  // namespace meshwright::text
