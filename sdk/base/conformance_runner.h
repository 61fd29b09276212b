// One case in a process of its own: a crash, a hang or an exit in the middle is a result.
//
// The child answers on a pipe that nothing else writes to (descriptor kAnswerFd), so that a plugin
// may print what it likes.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "conformance.h"

namespace meshwright::conformance {

inline constexpr int kAnswerFd = 3;

// What a child process tells its parent, in order: "verdict", then "problem", "note", "why", or
// what the program adds.
using Fields = std::vector<std::pair<std::string, std::string>>;

struct ChildResult {
  int exit_status = -1;  // -1 when it did not exit by itself
  int signal = 0;        // that ended it
  bool timed_out = false;
  std::string output;  // stdout and stderr together, the first 64 KiB
  Fields fields;       // its answer, as far as it came
  double seconds = 0;
};

// `arguments[0]` is the program. The child leads a process group of its own; the whole group is
// killed after `seconds`, and what is left of it when the child ends. Throws std::runtime_error
// when it cannot be started.
ChildResult run_child(const std::vector<std::string>& arguments, double seconds);

// A case as its parent sees it.
struct Outcome {
  Verdict verdict = Verdict::failed;
  std::vector<std::string> lines;  // problems; or the note, or why it was skipped
  ChildResult child;
};
Outcome run_case_in_child(const std::vector<std::string>& arguments, double seconds);

// The child's side. prepare_child: no core dumps, and an end with its parent. answer: false when
// nobody listens on kAnswerFd.
void prepare_child();
bool answer(const Fields& fields);
Fields fields_of(const Report& report);
std::vector<std::string> values_of(const Fields& fields, const std::string& name);

}  // namespace meshwright::conformance
