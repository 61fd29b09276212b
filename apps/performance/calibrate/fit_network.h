// The figures of [network], from the times of collectives.
#pragma once

#include <string_view>
#include <vector>

#include "apps/performance/calibrate/fit.h"

namespace meshwright::calibrate {

struct NetworkFigure {
  std::string_view name;  // "bus"
  bool at_bound = false;  // see Bounded
};
// Sets what `measured` has groups for, and returns these figures.
std::vector<NetworkFigure> fit_network(const Measured& measured, steptime::Machine& machine);
// The collectives and messages that the model knows, beside what it says of them.
std::vector<Point> network_points(const Measured& measured, const steptime::Machine& machine);

}  // namespace meshwright::calibrate
