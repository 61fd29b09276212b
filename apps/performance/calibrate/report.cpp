#include "apps/performance/calibrate/report.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <cmath>
#include <string_view>
#include <vector>

#include "apps/doctor/rates.h"
#include "apps/performance/steptime/figures.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/progress.h"

namespace meshwright::calibrate {
namespace {

std::string digits(double value, const char* format = "%.4g") {
  return text::format(format, value);
}

std::string sign(double error) { return digits(100 * error, "%+.0f%%"); }

}  // namespace

std::string figure_text(const steptime::Figure& figure) {
  const std::string_view table = figure.table, name = figure.name;
  const double value = *figure.to;
  if (table == "peak") return digits(value / 1e12) + " TFLOP/s";
  if (name == "memory" || name == "outside") return report::human_bytes(std::llround(value));
  if (name.starts_with("step_") || name.starts_with("send_latency_") || table == "host")
    return doctor::time_text(value);
  if (name == "bandwidth" || name == "bus" || name == "nic" || name.starts_with("send_"))
    return doctor::rate_text(value);
  return digits(value);
}

std::string as_machine(const std::string& file) {
  return (file.find('/') == std::string::npos && !file.ends_with(".toml") ? "./" : "") + file;
}

std::string Report::text(const report::Style& style) const {
  steptime::Machine machine = fitted.machine;
  std::string out = report::paint(style, report::Tone::bold, machine.name) + ", " +
                    report::counted(std::llround(measured.ranks), "rank", "ranks") + " on " +
                    report::counted(std::llround(measured.hosts), "host", "hosts") + "\n\n";
  std::vector<std::vector<std::string>> points = {{"MEASURED", "size", "seconds", "model"}};
  for (const Point& point : fitted.points)
    points.push_back(
        {point.what, point.size, doctor::time_text(point.measured), sign(point.error())});
  const std::vector<size_t> right = {2, 3};
  out += report::table(style, points, right) + "\n";
  std::string bounds;
  std::vector<std::vector<std::string>> figures = {{"FIGURE", "value", "source"}};
  for (const steptime::Figure& figure : steptime::figures_of(machine)) {
    const auto source = fitted.sources.find(figure.key());
    if (source == fitted.sources.end()) continue;
    const bool bound = fitted.at_bound(figure.key());
    if (bound) bounds += (bounds.empty() ? "" : ", ") + figure.key();
    figures.push_back({figure.key(), figure_text(figure),
                       bound                           ? "measured, at a bound: rough"
                       : fitted.measured(figure.key()) ? "measured"
                                                       : source->second});
  }
  out += report::table(style, figures) + "\n";
  if (!bounds.empty())
    for (const std::string& line :
         report::wrap("Left at the bound of what they may be, and rough: " + bounds +
                          ". What was measured lies beyond: something else ran meanwhile, or the "
                          "model knows nothing of it. Measure again while nothing else runs.",
                      static_cast<size_t>(std::max(style.width, 20))))
      out += line + "\n";
  return out + file + " is written, in " + report::human_duration(seconds) +
         ". meshwright plan JOB.toml --machine " + as_machine(file) + "\n";
}

boost::json::object Report::json() const {
  steptime::Machine machine = fitted.machine;
  boost::json::object figures;
  for (const steptime::Figure& figure : steptime::figures_of(machine)) {
    const auto source = fitted.sources.find(figure.key());
    if (source == fitted.sources.end()) continue;
    figures[figure.key()] = {{"value", *figure.to},
                             {"source", source->second},
                             {"measured", fitted.measured(figure.key())},
                             {"at_bound", fitted.at_bound(figure.key())}};
  }
  boost::json::array points;
  for (const Point& point : fitted.points)
    points.push_back({{"what", point.what},
                      {"size", point.size},
                      {"seconds", point.measured},
                      {"predicted", point.predicted}});
  return {{"file", file},
          {"name", machine.name},
          {"ranks", std::llround(measured.ranks)},
          {"hosts", std::llround(measured.hosts)},
          {"seconds", seconds},
          {"figures", figures},
          {"points", points}};
}

}  // namespace meshwright::calibrate
