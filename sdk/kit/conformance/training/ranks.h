// Runs ranks as threads and keeps what each of them finds. Not for use outside the kit.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/parallel/group.h"
#include "sdk/kit/conformance/training_library.h"

namespace meshwright::conformance {

// Where a case says what it finds.
struct Findings {
  void* context;
  Say fail;
  size_t count = 0;
  void add(const std::string& problem) {
    ++count;
    fail(context, problem.c_str());
  }
};

// What one rank finds; `refusal` where the layout is not run, by the code of an error or a word.
struct RankFound {
  std::vector<std::string> problems;
  std::string refusal;
};

struct Outcome {
  std::map<int64_t, std::vector<std::string>> problems;  // by rank; -1: of none in particular
  std::string refusal;
};

// What `body` throws is a problem of its rank, Error(not_in_release | device_unavailable) a
// refusal. A rank that found something before is not asked for what its exception says, nor is one
// whose group failed after another rank had found something: that mostly follows.
Outcome collect(int64_t ranks,
                const std::function<void(const std::shared_ptr<World>&, RankFound&)>& body);

// The first that each rank found: what follows is mostly its consequence.
void tell(const Outcome& outcome, const std::string& where, Findings& findings);

}  // namespace meshwright::conformance
