// Curves over the steps of runs, as the page draws them.
#pragma once

#include <boost/json/object.hpp>
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

}  // namespace meshwright::runs
