// Ranks that compute the same must get the same bits, and processors of unlike vectors do not
// promise that (semantics 13.2).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/launch/rendezvous/error_exchange.h"
#include "meshwright/trainer.h"

namespace meshwright::train {

// What to tell where ranks use unlike vectors; empty: all are alike. `vectors`: of every rank, as
// at::get_cpu_capability() has it.
std::string unlike_vectors(const std::vector<std::string>& vectors);

// join_world() for the program's own ranks, which end together.

// As join_world(). `ending` learns how far this rank has come, and may be null.
std::shared_ptr<World> join_world(const Job& job,
                                  const std::vector<std::pair<std::string, std::string>>& facts,
                                  rendezvous::Ending* ending);

}  // namespace meshwright::train
