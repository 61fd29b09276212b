// What a language model reads in one micro-batch, whichever data set it is from.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/model/running_model.h"
#include "meshwright/nn/moe.h"
#include "meshwright/trainer.h"

namespace meshwright::train {

// Tensors [rows, length], on the device. Undefined documents and positions: each row is one
// document; undefined weights: all are 1.
struct MicroBatch {
  at::Tensor tokens, targets;  // int64; targets without a loss are -100
  at::Tensor documents = {};   // int32, not descending along a row
  at::Tensor positions = {};   // int64, from 0 in each document
  at::Tensor weights = {};     // float32, of the targets in the loss
  // Targets, weights and documents on the host, for counting without a wait for the device. nullptr
  // targets: every position has one.
  const int64_t* host_targets = nullptr;
  const float* host_weights = nullptr;
  const int32_t* host_documents = nullptr;
  std::shared_ptr<const void> host = {};  // their memory
  std::vector<int64_t> ends = {};         // where what pads each row begins; empty: nothing pads
  // Of a mix whose losses are told by source: which one each row is of.
  std::vector<int64_t> sources = {};

  int64_t rows() const { return tokens.size(0); }
  int64_t length() const { return tokens.size(1); }
};

// Of ids [rows, length + 1]: each position's target is the next id.
inline MicroBatch next_tokens(const at::Tensor& ids) {
  const int64_t length = ids.size(1) - 1;
  return {.tokens = ids.narrow(1, 0, length), .targets = ids.narrow(1, 1, length)};
}

// What Trainer::evaluate() finds, with the number of targets it found it on.
struct Evaluation {
  // Mean over the targets, by their weights; NaN where they have none. What a model with experts
  // adds to it while it trains stands beside it: that depends on which samples are read together.
  double loss = 0;
  double auxiliary = 0;  // NaN where the model reports none
  double weight = 0;     // the sum of these weights
  int64_t targets = 0;
};

struct Evaluator {
  // Collective. As Trainer::evaluate().
  static Evaluation run(Trainer& trainer, int64_t micro_batches,
                        const Trainer::StageForward& forward);
};

// What a training step does with the routers of a model: their auxiliary loss, their load, their
// score correction. Does nothing for a model without experts. Not thread-safe; keeps no module
// alive.
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

// The loss of a micro-batch, whatever part of the vocabulary this rank holds. Logits are never
// gathered, and nothing waits for the device. `hidden`: what the stage before gave, as
// Trainer::StageForward has it.
MicroBatchLoss loss_of(Trainer& trainer, RunningModel& net, const MicroBatch& batch,
                       const at::Tensor& hidden = {});

// Collective. ids: [batch, length] on any device, any length; gives [batch, length, vocabulary] on
// every rank, without gradients. Under a pipeline those of the last position alone, [batch, 1,
// vocabulary]; with `last_alone` also elsewhere, where that spares work. `positions`: of each
// sample's first id, where what lies before it has been kept (KeyValueScope); empty: 0.
at::Tensor logits_of(Trainer& trainer, RunningModel& net, const at::Tensor& ids,
                     const std::vector<int64_t>& positions = {}, bool last_alone = false);
// What to tell whoever has text written on ranks that share samples; empty: nothing.
std::string whole_text_notice(Trainer& trainer);

}  // namespace meshwright::train
