#include "apps/observe/report/series.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace meshwright::runs {

std::optional<Summary> summary_of(const Series& series) {
  Summary out;
  std::vector<double> finite;
  finite.reserve(series.size());
  for (size_t i = 0; i < series.size(); ++i) {
    const double value = series.values[i];
    if (!std::isfinite(value)) {
      ++out.other;
      continue;
    }
    if (finite.empty() || value < out.least) out.least = value, out.least_at = series.steps[i];
    if (finite.empty() || value > out.most) out.most = value, out.most_at = series.steps[i];
    if (finite.empty()) out.first = value;
    out.last = value;
    finite.push_back(value);
  }
  if (finite.empty()) return std::nullopt;
  out.finite = finite.size();
  auto middle = finite.begin() + static_cast<ptrdiff_t>(finite.size() / 2);
  std::nth_element(finite.begin(), middle, finite.end());
  out.median = *middle;
  if (finite.size() % 2 == 0)
    out.median = (out.median + *std::max_element(finite.begin(), middle)) / 2;
  return out;
}

namespace {

Point point_of(const Series& series, size_t begin, size_t end) {
  Point out;
  out.step = series.steps[begin + (end - begin - 1) / 2];
  double sum = 0;
  size_t finite = 0;
  for (size_t i = begin; i < end; ++i) {
    const double value = series.values[i];
    if (!std::isfinite(value)) {
      ++out.other;
      continue;
    }
    out.least = finite == 0 ? value : std::min(out.least, value);
    out.most = finite == 0 ? value : std::max(out.most, value);
    sum += value;
    ++finite;
  }
  // Rounding must not carry the mean out of the band.
  out.mean = finite == 0 ? std::numeric_limits<double>::quiet_NaN()
                         : std::clamp(sum / static_cast<double>(finite), out.least, out.most);
  if (finite == 0) out.least = out.most = out.mean;
  return out;
}

}  // namespace

std::vector<Point> thinned(const Series& series, size_t most) {
  std::vector<Point> out;
  if (series.empty()) return out;
  if (series.size() <= most) {
    for (size_t i = 0; i < series.size(); ++i) out.push_back(point_of(series, i, i + 1));
    return out;
  }
  const double first = series.steps.front(),
               width = (series.steps.back() - first + 1) / static_cast<double>(most);
  auto range_of = [&](size_t i) { return std::floor((series.steps[i] - first) / width); };
  for (size_t begin = 0; begin < series.size();) {
    size_t end = begin + 1;
    while (end < series.size() && range_of(end) == range_of(begin)) ++end;
    out.push_back(point_of(series, begin, end));
    begin = end;
  }
  return out;
}

}  // namespace meshwright::runs
