// Adapters that join the weights of a model, which runs without them then.
#pragma once

#include "engine/generate/adapter.h"
#include "meshwright/trainer.h"

namespace meshwright::generate {

// Collective. Once the model is filled from the source: each weight beside which an adapter lies
// becomes W + scale B A, of the digits of the source, with one rounding to its dtype. Returns what
// was merged on all ranks. A rank that throws makes all throw: Error(weights_mismatch |
// bad_checkpoint).
checkpoint::MergeCount join_adapter(Trainer& trainer, const Source& source, Adapter& adapter);

}  // namespace meshwright::generate
