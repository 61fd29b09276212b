// The random number generators of a rank, whose states a checkpoint keeps.
#pragma once

#include <ATen/core/Generator.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/job/plan.h"
#include "meshwright/parallel/group.h"
#include "meshwright/trainer.h"

namespace meshwright::train {

// What the generators of the plan's rank are seeded with before a step: the same numbers in every
// run. Ranks with the same tokens draw alike, those with others do not (semantics 13.1).
uint64_t generator_seed(uint64_t seed, int64_t step, const plan::JobPlan& plan);
// The generators of this rank, by device: "cpu", and "cuda" where it trains on one.
std::vector<std::pair<std::string, at::Generator>> generators_of(const World& world);
// A copy of the state, as bytes.
at::Tensor state_of(at::Generator generator);

// A trainer goes on from a checkpoint, whatever the layout that wrote it.

// Fills the trainer from a checkpoint: weights, optimizer, buffers, generators (when there are as
// many ranks, and dp and cp are as large), step. Collective: a rank that throws makes all throw.
// Throws Error(checkpoint_mismatch) when model or optimizer are others, Error(bad_checkpoint).
// Returns whether generators were restored.
bool load_checkpoint(Trainer& trainer, checkpoint::Checkpoint& from);

}  // namespace meshwright::train
