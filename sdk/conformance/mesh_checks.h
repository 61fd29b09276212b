// Whether one answer of plan_mesh is a layout of the ranks that were asked for. Not for use outside
// the kit.
#pragma once

#include <string>

#include "sdk/conformance/probe.h"

namespace meshwright::conformance {

// Adds what is wrong to `report`, each problem led by the wish. `self` is the strategy that
// answered.
void check_plan(const Wish& wish, const MeshPlan& plan, const std::string& self, Report& report);

}  // namespace meshwright::conformance
