// One measured quantity over the steps of a run, and what is drawn of a long one.
#pragma once

#include <boost/json/object.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::runs {

// Steps ascend. A value that is not finite is kept as NaN: that there was one is worth knowing.
struct Series {
  std::vector<double> steps, values;

  void add(double step, double value) {
    steps.push_back(step);
    values.push_back(value);
  }
  bool empty() const { return steps.empty(); }
  size_t size() const { return steps.size(); }
};

struct Summary {
  size_t finite = 0, other = 0;
  double first = 0, last = 0, median = 0;  // of finite values
  double least = 0, most = 0;
  double least_at = 0, most_at = 0;  // steps
};
// nullopt: nothing in it is finite.
std::optional<Summary> summary_of(const Series& series);

// Consecutive steps as one point: the mean, and how far values went in both directions, so that no
// peak is lost.
struct Point {
  double step = 0;  // of the middle
  double mean = 0, least = 0, most = 0;
  size_t other = 0;  // values that were not finite; all of them: mean is NaN
};
// At most `most` points (1 or more), each for an equal range of steps; a series that is no longer
// has one a step.
std::vector<Point> thinned(const Series& series, size_t most);

// How values are written, and the scales that they are drawn on.

using text::format;
// At most four digits: "1.234", "0.0003", "12.3k", "4.5M".
std::string short_number(double value);
// As it is shown beside a curve: bytes as "1.5 GiB".
std::string value_text(double value, bool bytes);
// "A", "B" ... "Z", "AA": how runs are told apart without colours.
std::string letter_of(size_t run);
// Where the lines of a grid lie between two values, at most about `wanted` of them.
std::vector<double> ticks(double least, double most, bool log, bool bytes, size_t wanted = 4);
// What an axis that is not logarithmic shows of values between two: at least a ten-thousandth of
// their size, so that what differs by rounding alone lies on one line. Equal values stay.
std::pair<double, double> shown_range(double least, double most);
// A value of an axis whose greatest size is `most`, with the digits that tell it from its
// neighbours a `step` away: "2.7327", "200 MiB".
std::string axis_text(double value, double most, double step, bool bytes);

// Curves over the steps of runs, as the page draws them.

struct ChartLine {
  size_t run = 0;    // which style and letter it has
  std::string name;  // of the run
  std::vector<Point> points;
  Summary summary;  // of all its values
};
struct Chart {
  std::string key;    // "grad_norm"
  std::string title;  // "Gradient norm"
  std::string unit;   // "ms"
  bool bytes = false, may_be_log = false;
  double first_step = 1, last_step = 1;  // the same for all charts of a page
  std::vector<ChartLine> lines;
};

// Whether values lie so far apart that a linear axis would hide most of them.
bool wants_log(const Chart& chart);
// Points are [step, mean, least, most, values that were not finite]; what an end of them would
// repeat (no spread, none) is left out.
boost::json::object chart_json(const Chart& chart);

// Curves of characters.

struct PlotLine {
  size_t run = 0;        // its letter and colour
  const Series* series;  // not empty
};
struct Plot {
  std::vector<PlotLine> lines;
  double first_step = 1, last_step = 1;
  bool bytes = false, log = false;
  int rows = 8;
};
// One line alone is drawn of dots, eight to a character; several of their letters. Values that are
// the highest or lowest of their column are always there. Empty: nothing is finite.
std::string draw_plot(const report::Style& style, const Plot& plot);
report::Tone tone_of_run(size_t run);

}  // namespace meshwright::runs
