// One rank of `meshwright train`, from the configuration to the last step.
#pragma once

#include <string>
#include <vector>

namespace meshwright::train {

struct RunOptions {
  std::string file;
  std::vector<std::string> sets;
  bool trace = false;  // write runs/<name>/trace/rank_N.json
  bool live = false;   // rank 0's standard output is a terminal
  int width = 80;
  bool colour = false, unicode = true;
  int64_t sample_bytes = 0;  // byte models: write so many bytes after training
  std::string sample_prompt;
  double temperature = 0.7;
};

// Runs this process's rank. Prints to stdout (rank 0) and returns 0; throws Error.
int run_rank(const RunOptions& options);

}  // namespace meshwright::train
