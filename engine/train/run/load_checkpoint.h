// A trainer goes on from a checkpoint, whatever the layout that wrote it.
#pragma once

#include "engine/checkpoint/checkpoint.h"
#include "meshwright/trainer.h"

namespace meshwright::train {

// Fills the trainer from a checkpoint: weights, optimizer, buffers, generators (when there are as
// many ranks, and dp and cp are as large), step. Collective: a rank that throws makes all throw.
// Throws Error(checkpoint_mismatch) when model or optimizer are others, Error(bad_checkpoint).
// Returns whether generators were restored.
bool load_checkpoint(Trainer& trainer, checkpoint::Checkpoint& from);

}  // namespace meshwright::train
