// Every figure of a machine file, for what reads one and what writes one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/performance/steptime/machine.h"

namespace meshwright::steptime {

// More is a slip.
inline constexpr int kMostRanksOfAHost = 1024;

// What the source of a figure begins with that a fit left at the bound of its range: what was
// measured lies beyond, and forecasts that go by it are rough.
inline constexpr std::string_view kAtBound = "measured at a bound";

// `least` and `most` are what a machine of today or of the next years can have; beyond them it is a
// slip of the unit.
struct Figure {
  const char *table, *name;
  double* to;
  double least, most;
  const char* means;
  bool needed = true;
  bool whole = false;  // a count: 7.5 of it is none

  std::string key() const { return std::string(table) + "." + name; }
};

// Those of `machine`, in the order of a file.
std::vector<Figure> figures_of(Machine& machine);

}  // namespace meshwright::steptime
