// Which tokens the ranks of cp have, and what each way to meet the others' costs.
#pragma once

#include <string>

#include "engine/plan/plan.h"
#include "engine/report/report.h"

namespace meshwright::render {

// The plan has a context. Not indented.
std::string context_text(const report::Style& style, const plan::JobPlan& plan);

}  // namespace meshwright::render
