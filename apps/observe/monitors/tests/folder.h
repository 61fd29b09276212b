// A folder of a test's own, and rows as a run writes them.
#pragma once

#include <string>

#include "sdk/base/tests/scratch.h"

namespace monitor_tests {

using meshwright::scratch::Folder;
using meshwright::scratch::has;

inline std::string step_row(int64_t step, const std::string& more = "") {
  return "{\"step\": " + std::to_string(step) +
         ", \"completed_steps\": " + std::to_string(step + 1) +
         ", \"loss\": " + std::to_string(3 - 0.25 * static_cast<double>(step % 8)) +
         ", \"grad_norm\": 0.75, \"lr\": 1.5e-05, \"tokens\": 2048, \"step_ms\": 250.125, "
         "\"tokens_per_second\": 8187.9, \"memory_bytes\": 1048576, \"data_ms\": 2.5" +
         more + "}\n";
}

inline std::string validation_row(int64_t step, const std::string& loss) {
  return "{\"step\": " + std::to_string(step) +
         ", \"completed_steps\": " + std::to_string(step + 1) + ", \"validation_loss\": " + loss +
         "}\n";
}

}  // namespace monitor_tests
