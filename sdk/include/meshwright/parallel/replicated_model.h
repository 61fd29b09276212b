// Whole parameters on every rank, gradients averaged in buckets while the backward goes on (Li et
// al. 2020, the contract of torch DistributedDataParallel). Works on any torch::nn::Module: only
// mixed precision needs hooks, and those at the outermost module alone.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "meshwright/parallel/group.h"
#include "meshwright/parallel/parallel.h"

namespace meshwright {

struct ReplicationPolicy : ReplicatedPolicy {
  std::shared_ptr<Group> group;  // of one rank: nothing is communicated, copied or hooked
  std::string axis = "dp";
  MixedPrecision mp;
  bool broadcast_buffers = false;  // rank 0's buffers before every step
  bool find_unused_parameters =
      false;  // false: a parameter without gradient ends the step with an error that names it
  std::shared_ptr<TensorParallel> tensor_parallel;  // what was done to the model before, or null
  bool static_graph =
      false;  // the first step tells which parameters are unused; a change later is an error
  // The table whose options find_unused_parameters and static_graph are, "distributed.mine": errors
  // name them. Empty: there are none.
  std::string options = {};
};

// Collective. Parameters and buffers of rank 0 are broadcast unless they are on the meta device.
MESHWRIGHT_API std::unique_ptr<ParallelModel> replicate_model(
    std::shared_ptr<torch::nn::Module> model, ReplicationPolicy policy,
    std::shared_ptr<World> world);

}  // namespace meshwright
