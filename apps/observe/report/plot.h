// Curves of characters.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/observe/report/series.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::runs {

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
