// For tests of strategies and models: ranks as threads of one process, over gloo on loopback. Link
// Meshwright::testing.
//
//   meshwright::run_ranks(2, [](const std::shared_ptr<meshwright::World>& world) {
//     ... each rank's part ...
//   });
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "meshwright/parallel/group.h"

namespace meshwright {

// Runs `body` once per rank, each in a thread of its own with one thread for operators. The first
// exception of any rank is thrown after all have ended; collectives that wait for a rank which does
// not come time out after `timeout`. LibTorch's default random generator is one for all threads:
// give each rank its own, or make models beforehand. `body` must not use doctest's macros from two
// ranks at once.
void run_ranks(int64_t ranks, const std::function<void(const std::shared_ptr<World>&)>& body,
               std::chrono::milliseconds timeout = std::chrono::seconds(60));

}  // namespace meshwright
