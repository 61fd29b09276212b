// Dropout of what adapters read (lora.dropout), drawn element by element: whether one is dropped
// follows from the seed, the step, the module, the sample's place in the step, its position and its
// column, so that every layout drops the same ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string_view>

#include "engine/job/adapters.h"
#include "meshwright/outline.h"

namespace meshwright::train {

// The micro-batch that a forward is of.
struct MicroBatchPlace {
  int64_t step = 0;
  int64_t first_row = 0, rows = 1;  // its samples, among those of the step
};

class AdapterDropout {
 public:
  // `tensor_rank` of `tensor_ranks`: of this rank in its tensor-parallel group. It may have a part
  // of the columns, or of the positions.
  AdapterDropout(double rate, uint64_t seed, int64_t tensor_rank = 0, int64_t tensor_ranks = 1)
      : rate_(rate), seed_(seed), tensor_rank_(tensor_rank), tensor_ranks_(tensor_ranks) {}
  double rate() const { return rate_; }
  // Of the forwards from now on. What recomputes under activation checkpointing keeps the place of
  // its first run.
  void begin(const MicroBatchPlace& place) { place_ = place; }
  // What is dropped of x, the input of a Linear of so many columns in all: bool of its shape, on
  // its device. `part`: of each sample it is this rank's part of the positions, of equal ones of
  // the tensor-parallel group. Drawn on the host, whatever x's device.
  at::Tensor dropped(const at::Tensor& x, std::string_view module, int64_t columns,
                     bool part = false) const;

 private:
  double rate_;
  uint64_t seed_;
  int64_t tensor_rank_, tensor_ranks_;
  MicroBatchPlace place_;
};

}  // namespace meshwright::train

// Adapters on a model that runs: their parameters below the Linears that have one, and what they
// add to the Linears' outputs.

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
