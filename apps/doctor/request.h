// The command line of `doctor`, for the ranks.
#pragma once

#include <string>
#include <vector>

namespace meshwright::doctor {

struct Request {
  std::string file;  // CONFIG.toml; empty: none, one flat group of all ranks
  std::vector<std::string> sets = {};
  std::string run_folder = {};  // empty: run.dir of the file
  bool json = false;
  int width = 80;
  bool colour = false, unicode = true;
};

}  // namespace meshwright::doctor
