#include "apps/observe/report/chart.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <tuple>

#include "apps/observe/report/scale.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::runs {
namespace {

namespace json = boost::json;

// Nine digits are more than a picture shows, and values stand in the page many times.
json::value data_number(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(format("%.9g", value).c_str(), nullptr);
}

json::array point_json(const Point& point) {
  json::array out = {std::llround(point.step), data_number(point.mean)};
  const bool wide = std::isfinite(point.mean) && point.least != point.most;
  if (wide || point.other > 0) {
    out.push_back(data_number(point.least));
    out.push_back(data_number(point.most));
  }
  if (point.other > 0) out.push_back(point.other);
  return out;
}

// The range of an axis around what is drawn, with some room.
std::pair<double, double> range_of(const Chart& chart, bool log) {
  double least = std::numeric_limits<double>::infinity(), most = -least;
  for (const ChartLine& line : chart.lines)
    for (const Point& point : line.points)
      if (std::isfinite(point.mean)) {
        least = std::min(least, point.least);
        most = std::max(most, point.most);
      }
  if (least > most) least = 0, most = 1;
  if (log) {
    const double room = std::pow(most / least, 0.04);
    return {least / room, most * room};
  }
  std::tie(least, most) = shown_range(least, most);
  const double room = most > least ? (most - least) * 0.05 : std::max(std::abs(most) * 0.05, 1e-12);
  // What is never negative is not drawn as if it could be.
  return {least >= 0 && least < room ? 0 : least - room, most + room};
}

// What the picture shows, for those who do not see it.
std::string words_of(const Chart& chart) {
  std::string out = chart.title;
  for (const ChartLine& line : chart.lines) {
    const Summary& s = line.summary;
    auto text = [&](double value) { return value_text(value, chart.bytes); };
    out += "; " + line.name + ": from " + text(s.first) + " to " + text(s.last) + ", least " +
           text(s.least) + " at step " + report::human_count(std::llround(s.least_at)) + ", most " +
           text(s.most) + " at step " + report::human_count(std::llround(s.most_at));
  }
  return out;
}

}  // namespace

bool wants_log(const Chart& chart) {
  if (!chart.may_be_log) return false;
  double least = std::numeric_limits<double>::infinity(), most = 0;
  std::vector<double> medians;
  for (const ChartLine& line : chart.lines) {
    least = std::min(least, line.summary.least);
    most = std::max(most, line.summary.most);
    medians.push_back(line.summary.median);
  }
  return !medians.empty() && least > 0 &&
         most > 20 * *std::min_element(medians.begin(), medians.end());
}

json::object chart_json(const Chart& chart) {
  const bool log = wants_log(chart);
  const auto [least, most] = range_of(chart, log);
  const double last = std::max(chart.last_step, chart.first_step + 1),
               size = std::max(std::abs(least), std::abs(most));
  json::array grid, steps, lines;
  const std::vector<double> heights = ticks(least, most, log, chart.bytes);
  for (double at : heights)
    grid.push_back(json::array{
        at, log || heights.size() < 2 ? value_text(at, chart.bytes)
                                      : axis_text(at, size, heights[1] - heights[0], chart.bytes)});
  for (double at : ticks(chart.first_step, last, false, false, 5))
    if (at == std::floor(at)) steps.push_back(std::llround(at));
  for (const ChartLine& line : chart.lines) {
    json::array points;
    for (const Point& point : line.points) points.push_back(point_json(point));
    lines.push_back(json::object{{"run", line.run}, {"points", points}});
  }
  std::string words = chart.unit;
  if (log) words += std::string(words.empty() ? "" : ", ") + "logarithmic";
  return {{"key", chart.key},
          {"title", chart.title},
          {"words", words},
          {"label", words_of(chart)},
          {"bytes", chart.bytes},
          {"log", log},
          {"x", json::array{chart.first_step, last}},
          {"y", json::array{least, most}},
          {"grid", grid},
          {"steps", steps},
          {"lines", lines}};
}

}  // namespace meshwright::runs
