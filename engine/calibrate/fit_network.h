// The figures of [network], from the times of collectives.
#pragma once

#include <string_view>
#include <vector>

#include "engine/calibrate/fit.h"

namespace meshwright::calibrate {

// Sets what `measured` has groups for, and returns the names of these figures ("bus").
std::vector<std::string_view> fit_network(const Measured& measured, steptime::Machine& machine);
// The collectives and messages that the model knows, beside what it says of them.
std::vector<Point> network_points(const Measured& measured, const steptime::Machine& machine);

}  // namespace meshwright::calibrate
