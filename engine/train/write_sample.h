// A text of the trained model, at the end of a run.
#pragma once

#include <cstdint>
#include <string>

#include "engine/nets/causal_lm.h"
#include "engine/train/run.h"
#include "meshwright/trainer.h"

namespace meshwright::train {

// Collective. Parameters are gathered once for the whole text; every rank writes the same one.
std::string write_sample(Trainer& trainer, nets::CausalLM& net, const RunOptions& options,
                         int64_t seq_len, uint64_t seed);

}  // namespace meshwright::train
