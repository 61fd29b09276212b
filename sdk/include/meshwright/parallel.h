// What the third hook gets and returns; the one planning header that needs LibTorch's tensor type.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/strategy.h"

namespace torch::nn {
class Module;
}

namespace meshwright {

struct ParallelizeRequest {
  std::shared_ptr<torch::nn::Module> model;
  const ModelOutline& outline;
  const MeshPlan& mesh;
  const TpPlan& tp;
  const StrategyConfig& config;
  int64_t rank = 0;
};

// One parameter as this rank holds it. The optimizer, the norm, checkpoints and export all read this list.
struct ParallelParameter {
  std::string name;
  at::Tensor local;  // what the optimizer updates
  std::vector<int64_t> global_shape;
  std::vector<std::pair<std::string, std::string>> placement;  // axis -> "shard(d)" | "replicate"
};

// A model under a strategy. One training loop drives every strategy through it. Not thread-safe.
class MESHWRIGHT_API ParallelModel {
 public:
  ParallelModel() = default;
  ParallelModel(const ParallelModel&) = delete;
  ParallelModel& operator=(const ParallelModel&) = delete;
  virtual ~ParallelModel();

  // A step is begin_step, then micro_batch(last) before each forward, then end_step after the last backward.
  virtual void begin_step() = 0;
  virtual void micro_batch(bool last) = 0;
  virtual void end_step() = 0;  // collective: gradients are final afterwards
  virtual std::vector<ParallelParameter> parameters() const = 0;
  // Collective. Clips to `max_norm` (none when <= 0) and returns the global L2 norm before clipping, the same on all ranks.
  virtual double clip_grad_norm(double max_norm) = 0;
  // Collective. The whole parameter, on every rank.
  virtual at::Tensor full_tensor(std::string_view name) = 0;
  // Collective. Runs `body` with every parameter whole, and restores the shards after it, also when it throws.
  virtual void with_full_parameters(const std::function<void()>& body) = 0;
};

}  // namespace meshwright
