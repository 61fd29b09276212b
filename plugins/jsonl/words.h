// Numbers for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace meshwright::jsonl {

// 1234567 as "1,234,567".
inline std::string grouped(int64_t value) {
  std::string out = std::to_string(value);
  for (auto at = static_cast<int64_t>(out.size()) - 3; at > (value < 0 ? 1 : 0); at -= 3)
    out.insert(static_cast<size_t>(at), ",");
  return out;
}

// "1 row", "2 rows".
inline std::string counted(int64_t value, std::string_view what) {
  return grouped(value) + " " + std::string(what) + (value == 1 ? "" : "s");
}

}  // namespace meshwright::jsonl
