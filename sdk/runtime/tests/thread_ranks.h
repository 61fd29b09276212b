// Ranks as threads over an in-memory store and gloo on loopback: the fast harness.
#pragma once

#include <functional>
#include <memory>

#include "meshwright/group.h"

// Runs `body` once per rank, each in a thread of its own. The first exception of any rank is thrown after all have ended.
void run_ranks(int64_t ranks, const std::function<void(const std::shared_ptr<meshwright::World>&)>& body,
               std::chrono::milliseconds timeout = std::chrono::seconds(60));
