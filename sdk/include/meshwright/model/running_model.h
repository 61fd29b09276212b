// A model as it runs: what ModelFamily::make() gives. The engine has this one way to every model,
// its own included.
//
//   class Running final : public meshwright::RunningModel {
//    public:
//     std::shared_ptr<torch::nn::Module> module() override { return net_.ptr(); }
//     at::Tensor forward(const at::Tensor& input) override { return net_(input); }
//    private:
//     Net net_;  // declared with MESHWRIGHT_MODULE
//   };
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "meshwright/export.h"
#include "meshwright/nn/loss.h"

namespace torch::nn {
class Module;
}

namespace meshwright {

// The samples of a micro-batch, whole on every rank that has a part of them. What is made of them
// must depend on nothing else than this: then it is the same on every layout.
struct HostBatch {
  at::Tensor tokens, targets;  // [rows, length] int64 on the host; a target of -100 is none
  uint64_t seed = 0;           // run.seed
  int64_t step = 0;            // updates before this one
  int64_t sample = 0;          // row i is the run's sample of number sample + i
  bool training = true;        // false: validation, whose samples are the same each time
  std::shared_ptr<const Later> later = {};
};

// Not thread-safe. Called on all ranks alike; what it throws is told as the plugin's.
class MESHWRIGHT_API RunningModel {
 public:
  RunningModel() = default;
  RunningModel(const RunningModel&) = delete;
  RunningModel& operator=(const RunningModel&) = delete;
  virtual ~RunningModel();

  // Its parameters without values, on the meta device or not, under the outline's names in its
  // order. Wrapped and cut by strategies. The same module each time.
  virtual std::shared_ptr<torch::nn::Module> module() = 0;
  // Inputs [batch, length] int64 to the output, [batch, length, vocabulary] where the loss is the
  // default. Under a pipeline the current stage alone (meshwright/nn/stage.h): hidden states
  // [batch, length, hidden_size] come in but to the first and out but of the last one.
  virtual at::Tensor forward(const at::Tensor& input) = 0;
  // The sum of the losses over the targets that are not -100: float, 0-dim. `weights`: of the
  // targets, [batch, length]; undefined: all are 1. `shard`: which columns
  // of the output this rank has, where tensor parallelism cut a head named lm_head; else nullptr.
  // Under context parallelism output and targets are this rank's positions. Default:
  // cross_entropy_sum().
  virtual at::Tensor loss_sum(const at::Tensor& output, const at::Tensor& targets,
                              const at::Tensor& weights, const VocabularyShard* shard);
  // Whether change_batch() does something. Default: no.
  virtual bool changes_batches() const;
  // Before a forward, on the host: may replace tokens and targets or write to them, shapes stay.
  virtual void change_batch(HostBatch& batch) const;
  // Longest input that forward() takes. Default: any.
  virtual int64_t max_positions() const;
  // Whether the output at a position predicts the next token from those before it, so that text
  // can be made with it. Default: yes.
  virtual bool generates() const;
  // Growth: an interface by id, or nullptr.
  virtual void* extension(uint32_t id);
};

// Puts `weight` in place of the one that `module` has, as a head tied to an embedding needs: both
// are one Parameter then, under two names.
MESHWRIGHT_API void tie_weight(torch::nn::Module& module, const at::Tensor& weight);

// 64 random bits, the same on every processor for the same arguments: for change_batch().
MESHWRIGHT_API uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t counter);
// The same as a number in [0, 1).
inline double random_unit(uint64_t seed, uint64_t stream, uint64_t counter) {
  return static_cast<double>(random_bits(seed, stream, counter) >> 11) * 0x1p-53;
}

}  // namespace meshwright
