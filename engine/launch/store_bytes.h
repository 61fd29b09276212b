// Text as the values of a c10d store.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace meshwright::base {

inline std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
inline std::string text_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace meshwright::base
