// Numbers of things as people read them. Not public, all inline.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace meshwright::text {

// 1234567 as "1,234,567".
inline std::string grouped(int64_t value) {
  std::string out = std::to_string(value);
  const size_t first = value < 0 ? 1 : 0;
  for (size_t at = out.size(); at > first + 3;) out.insert(at -= 3, ",");
  return out;
}

// "1 row", "1,200 rows", "2 batches" ("batch" and "es").
inline std::string counted(int64_t value, std::string_view word,
                           std::string_view plural_ending = "s") {
  return grouped(value) + " " + std::string(word) +
         std::string(value == 1 ? std::string_view() : plural_ending);
}

}  // namespace meshwright::text
