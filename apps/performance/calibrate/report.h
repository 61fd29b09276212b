// What was measured, as tables for people or one object for machines.
#pragma once

#include <boost/json/object.hpp>
#include <string>

#include "apps/performance/calibrate/fit.h"
#include "apps/performance/steptime/figures.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::calibrate {

// "1.25e+11 operations a second" is for files; people read what its unit is short for.
std::string figure_text(const steptime::Figure& figure);
// A file's name as --machine takes it: without a slash or ".toml" it would be that of a machine.
std::string as_machine(const std::string& file);

struct Report {
  Measured measured;
  Fitted fitted;
  std::string file;
  double seconds = 0;  // that it took

  std::string text(const report::Style& style) const;
  boost::json::object json() const;
};

}  // namespace meshwright::calibrate
