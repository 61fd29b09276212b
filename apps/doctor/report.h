// All that was found, as tables for people or one object for machines.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "apps/doctor/finding.h"
#include "apps/doctor/links.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::doctor {

// What the ranks found alike is one line.
struct Line {
  Finding finding;
  std::vector<int64_t> ranks;
};

struct Report {
  Hosts hosts;
  std::vector<Line> lines;
  std::vector<Link> links;
  std::vector<Collective> collectives;
  std::string unmeasured = {};  // why links or collectives are missing; empty: none is
  double seconds = 0;
  int exit = 0;

  // Puts together what every rank found, by topic in the order of the first rank that has it.
  void add(const std::vector<std::vector<Finding>>& by_rank);
  void add(const Finding& finding) { lines.push_back({finding, {}}); }
  // Of the worst finding; 0: none is a fault.
  int exit_status() const;
  std::string text(const report::Style& style) const;
  boost::json::object json() const;

 private:
  std::string where(const Line& line) const;  // "hostb", "ranks 1, 3"; empty: everywhere
};

}  // namespace meshwright::doctor
