// Ranks and sizes of messages as errors and verdicts write them. Not public, all inline.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plain_text.h"

namespace meshwright::text {

// "[0, 1, 2]"; of many the first eight and the last.
inline std::string rank_list(const std::vector<int64_t>& ranks) {
  std::string out = "[";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i == 8 && ranks.size() > 10) return out + ", ... " + std::to_string(ranks.back()) + "]";
    out += (i ? ", " : "") + std::to_string(ranks[i]);
  }
  return out + "]";
}

inline std::string message_size(int64_t bytes) {
  if (bytes < 10000) return std::to_string(bytes) + " bytes";
  if (bytes < 1000000) return format("%.1f kB", static_cast<double>(bytes) / 1e3);
  return format("%.1f MB", static_cast<double>(bytes) / 1e6);
}

}  // namespace meshwright::text
