// Whole parameters on every rank, gradients averaged in buckets while the backward goes on (Li et
// al. 2020, the contract of torch DistributedDataParallel). Works on any torch::nn::Module: only
// mixed precision needs hooks, and those at the outermost module alone.
#pragma once

#include <memory>

#include "meshwright/parallel/group.h"
#include "meshwright/parallel/parallel.h"
#include "meshwright/sharding_plan.h"

namespace meshwright {

// Collective over `group`, the ranks that hold copies; of one rank nothing is communicated, copied
// or hooked. Parameters and buffers of the group's first rank are broadcast unless they are on the
// meta device. `tensor_parallel`: what was done to the model before, or null. `buckets`: planned,
// over the trainable parameters from the last to the first; empty: by the policy.
MESHWRIGHT_API std::unique_ptr<ParallelModel> replicate_model(
    std::shared_ptr<torch::nn::Module> model, const ReplicatedPolicy& policy,
    std::shared_ptr<Group> group, std::shared_ptr<World> world,
    std::shared_ptr<TensorParallel> tensor_parallel = nullptr,
    const std::vector<GradientBucket>& buckets = {});

}  // namespace meshwright
