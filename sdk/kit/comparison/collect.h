// Runs ranks as threads and keeps what each of them finds. Not for use outside the kit and the
// proof of a job.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/parallel/group.h"

namespace meshwright::comparison {

// What one rank finds; `refusal` where the layout is not run, by the code of an error or a word.
struct RankFound {
  std::vector<std::string> problems;
  std::string refusal;
};

struct RunOutcome {
  std::map<int64_t, std::vector<std::string>> problems;  // by rank; -1: of none in particular
  std::string refusal;
};

// What `body` throws is a problem of its rank, Error(not_in_release | device_unavailable) a
// refusal. A rank that found something before is not asked for what its exception says, nor is one
// whose group failed after another rank had found something: that mostly follows.
RunOutcome collect(int64_t ranks,
                   const std::function<void(const std::shared_ptr<World>&, RankFound&)>& body,
                   std::chrono::milliseconds timeout = std::chrono::seconds(10));

}  // namespace meshwright::comparison
