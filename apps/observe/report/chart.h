// Curves over the steps of runs, as inline SVG.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/observe/report/series.h"

namespace meshwright::runs {

struct ChartLine {
  size_t run = 0;    // which style and letter it has
  std::string name;  // of the run
  std::vector<Point> points;
  Summary summary;  // of all its values
};
// Something that happened at a step, drawn on the axis.
struct ChartMark {
  enum class Sign : uint8_t { cross, triangle, square };
  size_t run = 0;
  double step = 0;
  Sign sign = Sign::cross;
  std::string text;
};
struct Chart {
  std::string key;    // "grad_norm"
  std::string title;  // "Gradient norm"
  std::string unit;   // "ms"
  bool bytes = false, may_be_log = false;
  double first_step = 1, last_step = 1;  // the same for all charts of a page
  std::vector<ChartLine> lines;
  std::vector<ChartMark> marks;
};

// Whether values lie so far apart that a linear axis would hide most of them.
bool wants_log(const Chart& chart);
// A <figure>; the lines have their values in data attributes, for the page's script.
std::string draw_chart(const Chart& chart);
// A short piece of a run's line with its letter, for the legend.
std::string line_sample(size_t run);

}  // namespace meshwright::runs
