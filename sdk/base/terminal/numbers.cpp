#include <array>

#include "sdk/base/counts.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::report {

std::string human_bytes(int64_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes > -1024 && bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  // 1023.95 would round to 1024.0 of the smaller unit.
  while ((value >= 1023.95 || value <= -1023.95) && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return text::format("%.1f %s", value, kUnits[unit]);
}

std::string human_seconds(double seconds) {
  if (seconds >= 1) return text::format("%.2f s", seconds);
  if (seconds >= 1e-3) return text::format("%.1f ms", seconds * 1e3);
  return text::format("%.0f us", seconds * 1e6);
}

std::string human_count(int64_t count) { return text::grouped(count); }

std::string counted(int64_t count, std::string_view singular, std::string_view plural) {
  return human_count(count) + " " + std::string(count == 1 ? singular : plural);
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

}  // namespace meshwright::report
