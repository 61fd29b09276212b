// The plan as a picture for a terminal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/job/plan.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::render {

// The whole report: mesh, axes and groups, stages, tensor-parallel plan, parameters, memory,
// traffic.
std::string draw(const report::Style& style, const plan::JobPlan& plan);
// The mesh alone: pipeline stages as frames, replicas as blocks, shards as rows, tensor-parallel
// peers side by side.
std::string draw_mesh(const report::Style& style, const plan::JobPlan& plan);
// "0 2 4 6", "0-7", "0 8 .. 120 (16)".
std::string ranks_text(const std::vector<int64_t>& ranks, size_t width);
// model.layers.{0-31}.mlp.up_proj.weight: names that differ in one number only become one line.
struct Collapsed {
  std::string name;
  size_t count = 0, first = 0;  // how many, and the index of the first
};
std::vector<Collapsed> collapse(const std::vector<std::string>& names);

// Framed blocks of text side by side: what the mesh and the pipeline are drawn with.

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
