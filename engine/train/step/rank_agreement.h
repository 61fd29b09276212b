// How ranks meet, and what all of them must learn of outside of the training step: short texts,
// numbers and failures, by ordinary collectives. For .cpp files, as json_codec.h.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/launch/rendezvous/error_exchange.h"
#include "meshwright/parallel/group.h"
#include "meshwright/trainer.h"
#include "sdk/base/files/json_codec.h"

namespace meshwright::train {

// join_world() for the program's own ranks, which end together. `ending` learns how far this rank
// has come, and may be null.
std::shared_ptr<World> join_world(const Job& job,
                                  const std::vector<std::pair<std::string, std::string>>& facts,
                                  rendezvous::Ending* ending);

// Ranks that compute the same must get the same bits, and processors of unlike vectors do not
// promise that (semantics 13.2). What to tell where ranks use unlike vectors; empty: all are alike.
// `vectors`: of every rank, as at::get_cpu_capability() has it.
std::string unlike_vectors(const std::vector<std::string>& vectors);

// Collective. What every rank says, in rank order.
std::vector<std::string> gather_texts(World& world, const std::string& mine);
template <class T>
std::vector<T> gather(World& world, const T& mine) {
  std::vector<T> out;
  for (const std::string& text : gather_texts(world, base::json_text(mine)))
    out.push_back(base::read_json_text<T>(text));
  return out;
}

// Collective. The host of every rank, as the first rank on it. `here`: what tells this rank's from
// all others.
std::vector<int64_t> hosts_of_ranks(World& world, const std::string& here);

// Collective. The largest of each number among all ranks: as many on every rank, none of them NaN.
// On a device the host waits once, for all that was started.
std::vector<double> largest_of_ranks(World& world, const std::vector<double>& mine);

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
// The same of `work`, which gives a text or nothing.
template <std::invocable Work>
std::vector<std::string> agree_or_throw(World& world, const Work& work) {
  return agree_or_throw(world, outcome_of([&work]() -> std::string {
                          if constexpr (!std::is_void_v<std::invoke_result_t<const Work&>>)
                            return work();
                          work();
                          return {};
                        }));
}

}  // namespace meshwright::train
