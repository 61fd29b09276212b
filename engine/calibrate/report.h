// What was measured, as tables for people or one object for machines.
#pragma once

#include <boost/json/object.hpp>
#include <string>

#include "engine/calibrate/fit.h"
#include "engine/report/report.h"

namespace meshwright::calibrate {

struct Report {
  Measured measured;
  Fitted fitted;
  std::string file;
  double seconds = 0;  // that it took

  std::string text(const report::Style& style) const;
  boost::json::object json() const;
};

}  // namespace meshwright::calibrate
