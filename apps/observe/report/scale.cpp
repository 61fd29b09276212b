#include "apps/observe/report/pictures.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>

#include "sdk/base/terminal/report.h"

namespace meshwright::runs {

namespace {

constexpr struct {
  double unit;
  const char* name;
} kUnits[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};

}  // namespace

std::string short_number(double value) {
  if (!std::isfinite(value)) return "not finite";
  const double size = std::abs(value);
  for (const auto& [unit, name] : kUnits)
    if (size >= unit * 9.9995) return format("%.4g%s", value / unit, name);
  return format("%.4g", value);
}

std::string value_text(double value, bool bytes) {
  if (bytes && std::isfinite(value)) return report::human_bytes(std::llround(value));
  return short_number(value);
}

std::string letter_of(size_t run) {
  std::string out(1, static_cast<char>('A' + run % 26));
  return run < 26 ? out : letter_of(run / 26 - 1) + out;
}

std::vector<double> ticks(double least, double most, bool log, bool bytes, size_t wanted) {
  std::vector<double> out;
  if (log) {
    const bool fine = std::log10(most / least) < 2;
    for (int decade = static_cast<int>(std::floor(std::log10(least))); std::pow(10, decade) <= most;
         ++decade)
      for (double digit : {1.0, 2.0, 5.0}) {
        const double at = digit * std::pow(10, decade);
        if ((digit == 1 || fine) && at >= least && at <= most) out.push_back(at);
      }
    // Few enough to be read.
    while (out.size() > 2 * wanted) {
      std::vector<double> half;
      for (size_t i = 0; i < out.size(); i += 2) half.push_back(out[i]);
      out = std::move(half);
    }
    if (!out.empty()) return out;
  }
  if (!(most > least)) return {least};
  // Of bytes in the unit that names them, of which ten are no round number.
  double unit = 1;
  if (bytes)
    while (most / unit >= 1024) unit *= 1024;
  const double rough = (most - least) / unit / static_cast<double>(wanted),
               power = std::pow(10, std::floor(std::log10(rough)));
  double step = power * 10;
  for (double digit : {1.0, 2.0, 2.5, 5.0})
    if (rough <= digit * power) {
      step = digit * power;
      break;
    }
  step *= unit;
  for (double i = std::ceil(least / step - 1e-9); i * step <= most + step * 1e-9; ++i)
    out.push_back(i * step + 0.0);  // never "-0"
  return out;
}

std::pair<double, double> shown_range(double least, double most) {
  const double missing = std::max(std::abs(least), std::abs(most)) * 1e-4 - (most - least);
  if (!(most > least) || missing <= 0) return {least, most};
  return {least - missing / 2, most + missing / 2};
}

std::string axis_text(double value, double most, double step, bool bytes) {
  if (value == 0) return "0";
  double unit = 1;
  std::string name;
  if (bytes) {
    constexpr const char* kNames[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"};
    size_t power = 0;
    for (; most >= unit * 1024 && power + 1 < std::size(kNames); ++power) unit *= 1024;
    name = kNames[power];
  } else {
    for (const auto& [size, letter] : kUnits)
      if (name.empty() && most >= size * 9.9995) unit = size, name = letter;
  }
  int digits = std::max(0, static_cast<int>(std::ceil(-std::log10(step / unit) - 1e-9)));
  // A step of 2.5 has a digit more than its size tells.
  const double scaled = step / unit * std::pow(10, digits);
  if (std::abs(scaled - std::round(scaled)) > 1e-6 * scaled) ++digits;
  // What is too small for zeros to be counted, with the digits of its step.
  if (std::abs(value / unit) < 1e-4) {
    const int significant = static_cast<int>(std::ceil(std::log10(std::abs(value) / step))) + 1;
    return format("%.*g", std::clamp(significant, 1, 17), value / unit) + name;
  }
  return format("%.*f", digits, value / unit) + name;
}

}  // namespace meshwright::runs
