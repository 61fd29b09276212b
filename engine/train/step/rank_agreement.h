// How ranks meet, and what all of them must learn of outside of the training step: short texts,
// numbers and failures, by ordinary collectives. For .cpp files, as json_codec.h.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/launch/rendezvous/error_exchange.h"
#include "meshwright/error.h"
#include "meshwright/parallel/group.h"
#include "meshwright/trainer.h"
#include "sdk/base/files/json_codec.h"

namespace meshwright::train {

// Collective. What every rank says, in rank order.
std::vector<std::string> gather_texts(World& world, const std::string& mine);

// Collective. The host of every rank, as the first rank on it. `here`: what tells this rank's from
// all others.
std::vector<int64_t> hosts_of_ranks(World& world, const std::string& here);

// What is being handled, as an Error: LibTorch's words for memory that ended, and for what a plugin
// or a module did wrong, are ours then.
Error error_being_handled();

// What one rank's work gave: a text, or an error.
struct Outcome {
  std::string text;
  std::optional<Error> error;
};
// Runs `work`; whatever it throws is the outcome.
Outcome outcome_of(const std::function<std::string()>& work);
// Collective. The texts of all ranks, or the error of the first that failed, the same on every
// rank.
struct Agreement {
  std::vector<std::string> texts;
  std::optional<Error> error;
};
Agreement agree(World& world, const Outcome& mine);
// The same, but throws the error.
std::vector<std::string> agree_or_throw(World& world, const Outcome& mine);

// A few numbers of each rank, and the largest of each among all ranks.

// Collective. As many on every rank, none of them NaN. On a device the host waits once, for all
// that was started.
std::vector<double> largest_of_ranks(World& world, const std::vector<double>& mine);

// Collective. What every rank says, in rank order.
template <class T>
std::vector<T> gather(World& world, const T& mine) {
  std::vector<T> out;
  for (const std::string& text : gather_texts(world, base::json_text(mine)))
    out.push_back(base::read_json_text<T>(text));
  return out;
}

// What to tell where ranks use unlike vectors; empty: all are alike. `vectors`: of every rank, as
// at::get_cpu_capability() has it.
std::string unlike_vectors(const std::vector<std::string>& vectors);

// join_world() for the program's own ranks, which end together.

// As join_world(). `ending` learns how far this rank has come, and may be null.
std::shared_ptr<World> join_world(const Job& job,
                                  const std::vector<std::pair<std::string, std::string>>& facts,
                                  rendezvous::Ending* ending);

}  // namespace meshwright::train
