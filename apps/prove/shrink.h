// A job made small: the same axes and options, sizes cut to the smallest that keep their
// arithmetic. Links no LibTorch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/job/plan.h"

namespace meshwright::prove {

inline constexpr int64_t kMostRanks = 64;

struct Shrunk {
  // Configurations: on ranks, and of one process by the default strategy.
  std::string toml, alone;
  std::map<std::string, std::string> files;  // that they name, in memory: base::hand_files()
  int64_t ranks = 1;
  int64_t rows = 1;  // samples of a micro-batch
  int64_t length = 1;
  bool documents = false;  // samples hold several each
  bool one_dtype = false;  // the job computes in float64 itself
  // Options of the strategy that keep something in float32, off: for the run in float64.
  std::vector<std::string> wide_sets;
  std::string model;                                      // its architecture
  std::vector<std::pair<std::string, std::string>> axes;  // "tp", "2"
  std::vector<std::string> sizes;                         // what was cut: "heads 6 (of 32)"
  // What the job has and the proof has not, one plain line each.
  std::vector<std::string> not_proven;
};

// Throws Error for a job that cannot be planned, and Error(usage) for one that no layout of up to
// kMostRanks ranks keeps. `world`: 0: the smallest that has every axis of the job.
Shrunk shrink(const plan::Job& job, int64_t world);

}  // namespace meshwright::prove
