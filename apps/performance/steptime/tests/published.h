// The published runs of tests/data/published as jobs of the model, with what was measured.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "apps/performance/steptime/predict.h"

namespace meshwright::steptime::published {

// What its authors wrote of a run, beside the job itself.
struct Row {
  std::string id, set, gpu, model;
  Shape shape;
  Job job;
  double nic = 0;
  bool mesh_board = false;
  double seconds = 0;  // of a step, as published
  double memory = 0;   // GiB of the fullest rank, 0: not published

  bool experts() const { return shape.experts > 0; }
};

std::map<std::string, Shape> models(const std::string& folder);
std::vector<Row> runs(const std::string& folder);  // with those of mpt
std::vector<Row> sweep(const std::string& folder);
std::vector<Row> single(const std::string& folder);
std::vector<Row> layouts(const std::string& folder);  // `seconds` is 0
std::vector<std::vector<std::string>> pairs(const std::string& folder);

// The shipped machine files by the names of the fixture, and one of them with the row's network.
using Machines = std::map<std::string, Machine>;
Machines machines(const std::string& folder);
Machine machine_of(const Row& row, const Machines& machines);

}  // namespace meshwright::steptime::published
