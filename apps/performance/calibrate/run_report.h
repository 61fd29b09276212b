// What a run corrected in a machine file, as tables for people or one object for machines.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <string>

#include "apps/performance/calibrate/from_run.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::calibrate {

struct RunReport {
  RunTime run;
  int64_t steps = 0;          // that the median is of
  steptime::Machine machine;  // as it was
  FromRun found;
  std::string file;
  steptime::Prediction before, after;  // of the run's job; `after` with the file as it was written

  std::string text(const report::Style& style) const;
  boost::json::object json() const;
};

}  // namespace meshwright::calibrate
