// Adapters on a model that runs: their parameters below the Linears that have one, what they add to
// the Linears' outputs, and which ranks draw the same random numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string_view>

#include "engine/job/adapters.h"
#include "engine/job/plan.h"
#include "meshwright/outline.h"

namespace torch::nn {
class Module;
}

namespace meshwright::train {

// The micro-batch that a forward is of.
struct MicroBatchPlace {
  int64_t step = 0;
  int64_t first_row = 0, rows = 1;  // its samples, among those of the step
};

// lora.dropout, drawn element by element: whether one is dropped follows from the seed, the step,
// the module, the sample's place in the step, its position and its column, so that every layout
// drops the same ones.
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

// The number of the plan's rank among those that draw unlike each other: by the coordinates of dp
// and cp and, where tensor parallelism cuts the sequence, of tp (semantics 13.1).
inline int64_t place_of_draws(const plan::JobPlan& plan) {
  const std::optional<Mesh>& mesh = plan.mesh.device_mesh;
  if (!mesh) return plan.rank;
  const int64_t place =
      mesh->coordinate(plan.rank, "dp") * mesh->size("cp") + mesh->coordinate(plan.rank, "cp");
  return plan::cuts_sequence(plan.tp) ? place * mesh->size("tp") + mesh->coordinate(plan.rank, "tp")
                                      : place;
}

// Before a forward of a pipeline: by the first layer of its stage, so that draws do not depend on
// the order in which a schedule runs the stages.
inline uint64_t forward_seed(uint64_t seed, int64_t step, int64_t first_layer, int64_t micro,
                             int64_t place) {
  for (int64_t part : {step, micro, first_layer, place})
    seed = (seed ^ static_cast<uint64_t>(part)) * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du;
  return seed;
}

}  // namespace meshwright::train
