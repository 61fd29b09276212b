// How times and rates read.
#pragma once

#include <cstdio>
#include <string>

namespace meshwright::doctor {

// "11.7 MB/s", "2.35 GB/s": of networks, whose makers count in tens.
inline std::string rate_text(double bytes_per_second) {
  char text[40];
  if (bytes_per_second >= 1e9)
    std::snprintf(text, sizeof text, "%.3g GB/s", bytes_per_second / 1e9);
  else
    std::snprintf(text, sizeof text, "%.3g MB/s", bytes_per_second / 1e6);
  return text;
}

// "31 us", "2.4 ms", "1.2 s"
inline std::string time_text(double seconds) {
  char text[40];
  if (seconds < 1e-3)
    std::snprintf(text, sizeof text, "%.3g us", seconds * 1e6);
  else if (seconds < 1)
    std::snprintf(text, sizeof text, "%.3g ms", seconds * 1e3);
  else
    std::snprintf(text, sizeof text, "%.3g s", seconds);
  return text;
}

}  // namespace meshwright::doctor
