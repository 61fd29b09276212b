// How times and rates read.
#pragma once

#include <string>

#include "sdk/base/plain_text.h"

namespace meshwright::doctor {

// "11.7 MB/s", "2.35 GB/s": of networks, whose makers count in tens.
inline std::string rate_text(double bytes_per_second) {
  if (bytes_per_second >= 1e9) return text::format("%.3g GB/s", bytes_per_second / 1e9);
  return text::format("%.3g MB/s", bytes_per_second / 1e6);
}

// "31 us", "2.4 ms", "1.2 s"
inline std::string time_text(double seconds) {
  if (seconds < 1e-3) return text::format("%.3g us", seconds * 1e6);
  if (seconds < 1) return text::format("%.3g ms", seconds * 1e3);
  return text::format("%.3g s", seconds);
}

}  // namespace meshwright::doctor
