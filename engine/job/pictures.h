// Framed blocks of text side by side: what the mesh and the pipeline are drawn with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/job/plan.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::render {

using Lines = std::vector<std::string>;

// The sign for what is left out.
const char* dots(const report::Style& style);
// Columns of the widest line.
size_t width_of(const Lines& lines);
// A frame with a title around some lines; 4 columns wider than they are.
Lines frame(const report::Style& style, report::Tone tone, const std::string& title,
            const Lines& inside);
// Blocks side by side as far as the width allows, then below.
Lines flow(const std::vector<Lines>& blocks, size_t width);
// Which indices of an axis are drawn, at most `most` (3 or more): all of a short one; of a long one
// the first, the last and `mine`, with -1 for a gap.
std::vector<int64_t> shown(int64_t size, int64_t most, int64_t mine);

// When each rank of a pipeline does what: rows are ranks, columns are time.

// A run, cell by cell; one column is the time of a forward of one stage. At most style.width wide:
// what does not fit goes below, and of a long run only its beginning and its end are drawn. `mine`
// is the rank of the pipeline that is called `label` beside its number. Not indented.
std::string draw_timeline(const report::Style& style, const PipelineRun& run, int64_t mine,
                          const std::string& label);
// The plan has a pipeline: its run by the simulation, all stages taken to be alike.
std::string pipeline_timeline(const report::Style& style, const plan::JobPlan& plan);

}  // namespace meshwright::render
