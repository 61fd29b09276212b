// Runs a command as a child with a time limit: a crash or a hang of what it does is a result.
#pragma once

#include <string>
#include <vector>

namespace meshwright::conformance {

struct ChildResult {
  int exit_status = -1;  // -1 when it did not exit by itself
  int signal = 0;        // that ended it
  bool timed_out = false;
  std::string output;  // stdout and stderr together, the first 64 KiB
};

// `arguments[0]` is the program. The child leads a process group of its own, which is killed as a whole after `seconds`.
// Throws std::runtime_error when it cannot be started.
ChildResult run_child(const std::vector<std::string>& arguments, double seconds);

}  // namespace meshwright::conformance
