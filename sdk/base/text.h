// Small text helpers of the SDK library beyond words.h. Not public.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/options.h"
#include "words.h"

namespace meshwright::text {

// A TOML basic string with its escapes.
std::string quote(std::string_view text);
// "a.b.c" lies under "", "a" and "a.b", not under "a.b.c".
bool lies_under(std::string_view name, std::string_view module);
// "a.b.c" itself also lies in "a.b.c".
MESHWRIGHT_API bool lies_in(std::string_view name, std::string_view module);
// A literal as it stands in an option's default: true, 2, 1e-8, "auto", ["a", "b"], [0.9, 0.95].
std::optional<OptionValue> parse_literal(std::string_view text);

template <class Range, class Print>
std::string list(const Range& items, Print&& print) {
  std::vector<std::string> parts;
  for (const auto& item : items) parts.push_back(print(item));
  return "[" + join(parts, ", ") + "]";
}

}  // namespace meshwright::text
