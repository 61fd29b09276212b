// When each rank of a pipeline does what: rows are ranks, columns are time.
#pragma once

#include <string>

#include "engine/job/plan.h"
#include "sdk/base/pipeline_actions.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::render {

// A run, cell by cell; one column is the time of a forward of one stage. At most style.width wide:
// what does not fit goes below, and of a long run only its beginning and its end are drawn. `mine`
// is the rank of the pipeline that is called `label` beside its number. Not indented.
std::string draw_timeline(const report::Style& style, const PipelineRun& run, int64_t mine,
                          const std::string& label);
// The plan has a pipeline: its run by the simulation, all stages taken to be alike.
std::string pipeline_timeline(const report::Style& style, const plan::JobPlan& plan);

}  // namespace meshwright::render
