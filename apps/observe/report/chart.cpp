#include "apps/observe/report/chart.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <tuple>

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

namespace {

namespace json = boost::json;

// Nine digits are more than a picture shows, and values stand in the page many times.
json::value data_number(double value) {
  if (!std::isfinite(value)) return nullptr;
  const std::string digits = format("%.9g", value);
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
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

namespace {

using report::Style;
using report::Tone;

// Dots, each of the run that was drawn last; -1: none.
class Canvas {
 public:
  Canvas(int width, int height)
      : width_(width),
        height_(height),
        dots_(static_cast<size_t>(width) * static_cast<size_t>(height), -1) {}
  int width() const { return width_; }
  int height() const { return height_; }
  int at(int x, int y) const { return dots_[place(x, y)]; }
  void set(int x, int y, int run) {
    if (x >= 0 && x < width_ && y >= 0 && y < height_) dots_[place(x, y)] = run;
  }
  void line(int x0, int y0, int x1, int y1, int run) {
    const int steps = std::max({std::abs(x1 - x0), std::abs(y1 - y0), 1});
    for (int i = 0; i <= steps; ++i)
      set(x0 + (x1 - x0) * i / steps,
          y0 + static_cast<int>(std::lround(static_cast<double>(y1 - y0) * i / steps)), run);
  }

 private:
  size_t place(int x, int y) const {
    return static_cast<size_t>(y) * static_cast<size_t>(width_) + static_cast<size_t>(x);
  }
  int width_, height_;
  std::vector<int> dots_;
};

// Two by four dots as one character of Unicode's braille patterns.
std::string braille(const Canvas& canvas, int column, int row) {
  constexpr int kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
  int bits = 0;
  for (int y = 0; y < 4; ++y)
    for (int x = 0; x < 2; ++x)
      if (canvas.at(2 * column + x, 4 * row + y) >= 0) bits |= kBits[y][x];
  if (bits == 0) return " ";
  const int code = 0x2800 + bits;
  return {static_cast<char>(0xe0 | (code >> 12)), static_cast<char>(0x80 | ((code >> 6) & 0x3f)),
          static_cast<char>(0x80 | (code & 0x3f))};
}

}  // namespace

Tone tone_of_run(size_t run) {
  constexpr Tone kTones[] = {Tone::cyan,    Tone::yellow, Tone::green,
                             Tone::magenta, Tone::red,    Tone::blue};
  return kTones[run % std::size(kTones)];
}

std::string draw_plot(const Style& style, const Plot& plot) {
  constexpr int kLabel = 10;
  const bool dots = plot.lines.size() == 1 && style.unicode;
  const int columns = std::max(20, style.width - kLabel - 2);
  Canvas canvas(columns * (dots ? 2 : 1), plot.rows * (dots ? 4 : 1));
  double least = std::numeric_limits<double>::infinity(), most = -least;
  std::vector<std::vector<Point>> lines;
  for (const PlotLine& line : plot.lines) {
    lines.push_back(thinned(*line.series, static_cast<size_t>(canvas.width())));
    for (const Point& point : lines.back())
      if (std::isfinite(point.mean)) {
        least = std::min(least, point.least);
        most = std::max(most, point.most);
      }
  }
  if (least > most) return {};
  if (!plot.log) std::tie(least, most) = shown_range(least, most);
  // Four digits are not enough where the two ends would read alike.
  const double size = std::max(std::abs(least), std::abs(most));
  auto label_of = [&](double value) {
    if (plot.log || most - least > size / 100) return value_text(value, plot.bytes);
    const double power = std::pow(10, std::floor(std::log10((most - least) / 4)));
    return axis_text(value, size, power, plot.bytes);
  };
  auto height_of = [&](double value) {
    double part = 0.5;
    if (most > least)
      part = plot.log ? std::log(value / least) / std::log(most / least)
                      : (value - least) / (most - least);
    return static_cast<int>(std::lround((1 - part) * (canvas.height() - 1)));
  };
  const double steps = std::max(plot.last_step - plot.first_step, 1.0);
  auto column_of = [&](double step) {
    return static_cast<int>(std::lround((step - plot.first_step) / steps * (canvas.width() - 1)));
  };
  for (size_t i = 0; i < lines.size(); ++i) {
    const int run = static_cast<int>(plot.lines[i].run);
    int x = -1, y = 0;
    for (const Point& point : lines[i]) {
      if (!std::isfinite(point.mean)) {
        x = -1;
        continue;
      }
      const int next = column_of(point.step), height = height_of(point.mean);
      if (x >= 0) canvas.line(x, y, next, height, run);
      canvas.line(next, height_of(point.most), next, height_of(point.least), run);
      x = next, y = height;
    }
  }
  std::string out;
  const char *side = style.unicode ? "│" : "|", *corner = style.unicode ? "└" : "+";
  for (int row = 0; row < plot.rows; ++row) {
    std::string label;
    if (row == 0) label = most > least ? label_of(most) : value_text(most, plot.bytes);
    if (row == plot.rows - 1 && most > least) label = label_of(least);
    out += report::paint(style, Tone::dim, report::pad_left(label, kLabel) + " " + side);
    std::string line;
    for (int column = 0; column < columns; ++column) {
      if (dots) {
        line += braille(canvas, column, row);
        continue;
      }
      const int run = canvas.at(column, row);
      const std::string letter = plot.lines.size() == 1 ? "*"
                                 : run < 0              ? ""
                                           : letter_of(static_cast<size_t>(run)).substr(0, 1);
      line += run < 0 ? std::string(" ")
                      : report::paint(style, tone_of_run(static_cast<size_t>(run)), letter);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += (dots ? report::paint(style, tone_of_run(plot.lines[0].run), line) : line) + "\n";
  }
  const std::string first = report::human_count(std::llround(plot.first_step)),
                    last = "step " + report::human_count(std::llround(plot.last_step));
  std::string base = std::string(kLabel + 1, ' ') + corner + first;
  base += report::pad_left(
      last, static_cast<size_t>(std::max(1, columns + 1 - static_cast<int>(first.size()))));
  return out + report::paint(style, Tone::dim, base) + "\n";
}

}  // namespace meshwright::runs
