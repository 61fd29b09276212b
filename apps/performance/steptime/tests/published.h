// The published runs of tests/data/published as jobs of the model, with what was measured.
#pragma once

#include <cmath>
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

// A row beside what the model says of it.
struct Compared {
  Row row;
  Machine machine;
  Prediction predicted;
  double error = 0;             // of seconds, relative
  double memory = 0;            // bytes
  double use = 0, of_card = 0;  // of what ranks may take, and of all that the device has
  // Of what the allocator gave out. torchtitan publishes what it reserved, 2 to 8% over that.
  double memory_error() const {
    const double reserved = row.id.starts_with("TT") ? 1.05 : 1;
    return std::abs(reserved * memory / std::exp2(30) / row.memory - 1);
  }
};
std::vector<Compared> compare(const std::vector<Row>& rows, const Machines& machines);
double quantile(std::vector<double> values, double share);

}  // namespace meshwright::steptime::published
