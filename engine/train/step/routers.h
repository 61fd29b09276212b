// What a training step does with the routers of a model: their auxiliary loss, their load, their
// score correction.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/nn/moe.h"
#include "meshwright/trainer.h"

namespace meshwright::train {

// Does nothing for a model without experts. Not thread-safe; keeps no module alive.
class Routers {
 public:
  // route_again: what is recomputed under activation checkpointing selects its experts anew.
  // in_turns: see RouterImpl.
  Routers(torch::nn::Module& model, bool route_again, bool in_turns);
  bool any() const { return !blocks_.empty(); }
  // Where ranks of a pipeline have a part of the model each. A loss of the whole model's routers
  // would need them all: throws Error(not_in_release).
  void refuse_balance_over_stages() const;
  // The model has lost the blocks of other stages: their loads come from the ranks that have them.
  void forget_others(torch::nn::Module& model);
  // The ranks of cp.
  void share_samples(std::shared_ptr<Group> context) { context_ = std::move(context); }
  void begin_step();
  // What the targets of a micro-batch weigh on this rank and, where that is known, on all that
  // share its samples.
  struct Weight {
    double mine = 0;
    std::optional<double> all = {};
  };
  // Whether `all` is of use. Who knows it tells it within the micro-batch's forward.
  bool needs_weight() const { return context_ && !balances_.empty(); }
  void tell_weight(std::optional<double> all) { told_ = all; }
  // Right after that forward.
  Weight weigh(double mine) { return {mine, std::exchange(told_, std::nullopt)}; }
  // Between forward and backward of a micro-batch whose gradients are divided by `assumed`: its
  // auxiliary loss weighs as much as its targets. Collective over the ranks that share samples; the
  // host waits for a device where they were not told `all`.
  void before_backward(const Weight& weight, double assumed);
  // What the auxiliary loss adds to the mean loss of the last forward; undefined: nothing. Only an
  // auxiliary loss of the whole model, as transformers has it, is reported; one of each layer acts
  // on gradients alone.
  at::Tensor reported_loss() const;

  // The load of this rank's step, int64, where the routers are (undefined: no routers), and from
  // the sums of all ranks the load of the step.
  at::Tensor load() const;
  std::vector<ExpertLoad> read_load(const double* sums) const;
  // After the optimizer's step. `sums`: those of all ranks, where the routers are.
  void update_biases(const std::vector<ExpertLoad>& load, const at::Tensor& sums);

 private:
  struct Block {
    std::string name;
    MoeImpl* module;  // nullptr: another stage's
    int64_t experts, active;
  };
  std::vector<Block> blocks_;                           // of the whole model
  std::vector<std::shared_ptr<LoadBalance>> balances_;  // each once
  std::shared_ptr<Group> context_;
  std::optional<double> told_;  // of the forward that runs
};

}  // namespace meshwright::train
