// Short texts and failures that all ranks must learn of: by ordinary collectives, outside of the
// training step.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/parallel/group.h"

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

}  // namespace meshwright::train
