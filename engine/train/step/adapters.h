// Adapters on a model that runs: their parameters below the Linears that have one, and what they
// add to the Linears' outputs.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/job/adapters.h"
#include "engine/train/step/adapter_dropout.h"
#include "meshwright/outline.h"

namespace torch::nn {
class Module;
}

namespace meshwright::train {

// Before the model is made parallel. Registers lora_A and lora_B below each Linear, as the outline
// has them, of the weight's device. Those of a weight that holds values hold their first ones, by
// `seed`; others are filled with the model. Throws Error(bad_module) for a Linear that cannot have
// an adapter.
void attach_adapters(const plan::Adapters& adapters, const ModelOutline& outline,
                     torch::nn::Module& model, uint64_t seed);

// After it is made parallel: x is taken as the Linear itself takes it, and what is added joins its
// output before anything else that a strategy does to that. Where Linears of one module read one x,
// their A are multiplied with it at once (sdk/base/add_low_rank.h). `dropout`: nullptr without.
void run_adapters(const plan::Adapters& adapters, const ModelOutline& outline,
                  torch::nn::Module& model, const std::shared_ptr<AdapterDropout>& dropout);

}  // namespace meshwright::train
