// The command line of `calibrate`, for the ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace meshwright::calibrate {

// What products are measured in.
enum class Widths : uint8_t { both, half, full };

struct Request {
  std::string out = "machine.toml";
  double seconds = 30;  // that measuring may take, about
  Widths widths = Widths::both;
  std::vector<std::string> sets = {};
  std::string machines = {};  // folder of the shipped machine files
  bool json = false;
  bool live = false;  // standard error is a terminal
  int width = 80;
  bool colour = false, unicode = true;
};

}  // namespace meshwright::calibrate
