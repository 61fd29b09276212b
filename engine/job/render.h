// The plan as a picture for a terminal.
#pragma once

#include <string>

#include "engine/job/plan.h"
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

}  // namespace meshwright::render
