// Time as it is written down and as it is measured.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace meshwright::base {

// "2026-11-22T09:30:00Z".
std::string utc_now();

// Milliseconds on a clock that nobody sets. For signal handlers too.
int64_t monotonic_ms();

// Milliseconds since `begin`.
inline double ms_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

}  // namespace meshwright::base
