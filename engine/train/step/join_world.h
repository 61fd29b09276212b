// join_world() for the program's own ranks, which end together.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/launch/rendezvous/ending.h"
#include "meshwright/trainer.h"

namespace meshwright::train {

// As join_world(). `ending` learns how far this rank has come, and may be null.
std::shared_ptr<World> join_world(const Job& job,
                                  const std::vector<std::pair<std::string, std::string>>& facts,
                                  rendezvous::Ending* ending);

}  // namespace meshwright::train
