// What was measured, as a table, as CSV and as JSON.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "engine/report/report.h"

namespace meshwright::evaluate {

struct Finding {
  std::string path, name;  // the folder; "step_00000050"
  int64_t step = -1;       // -1: not of a run
  double loss = 0;         // mean cross entropy of the targets
  // What routers of experts add to it in training: how evenly they spread the samples that are read
  // together. Not a number: nothing.
  double auxiliary = std::numeric_limits<double>::quiet_NaN();
  int64_t targets = 0;
  double seconds = 0;
  double perplexity() const;  // e^loss
};

struct Findings {
  std::string data;         // "3 files, 1.2 MB of text"
  bool bytes = false;       // its tokens are the bytes of texts
  int64_t samples = 0;      // that were read
  int64_t all_samples = 0;  // that there are
  int64_t seq_len = 0;
  std::vector<Finding> rows;

  bool has_auxiliary() const;
  std::string text(const report::Style& style) const;
  std::string csv() const;
  boost::json::object json() const;
};

}  // namespace meshwright::evaluate
