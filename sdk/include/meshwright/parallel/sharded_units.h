// Sharded parameters: each unit (a module and its parameters) keeps 1/n of every parameter on a
// rank, gathers them before its forward and its backward, frees them after, and reduces gradients
// as soon as its backward is done (ZeRO stage 3: Rajbhandari et al. 2020; the run-time contract is
// that of torch FSDP2's fully_shard). Strategies differ in the layout of shards and in policy only.
//
// The module's own parameters stay the same tensors: their storage is empty outside the unit, and
// any use of it there throws, naming the parameter. The optimizer works on flat shards: one group a
// dtype on the host, and one a unit on a device, whose gradients have memory of their own.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/parallel/group.h"
#include "meshwright/parallel/parallel.h"
#include "meshwright/sharding_plan.h"

namespace meshwright {

// How a unit is cut where it differs from the rest of the model: experts over an axis of their own.
struct UnitSharding {
  std::shared_ptr<Group> shard;  // of one rank: nothing is gathered or reduced
  std::string axis;
  int64_t dim = 0;  // cut of parameters with more dimensions than that, others along 0; a dim above
                    // 0 must divide evenly
  double divisor = 1;  // gradients are sums over `shard` divided by this
  std::shared_ptr<const Later> later = {};
};

struct UnitSpec {
  std::string name;                     // dotted, or "root"
  torch::nn::Module* module = nullptr;  // must be hookable (MESHWRIGHT_MODULE)
  std::vector<std::pair<std::string, at::Tensor>>
      parameters;                     // full names; a meta tensor gets storage but no values
  bool reshard_after_forward = true;  // false: stays gathered until its backward ends
  int64_t module_list = -1;           // units of one list prefetch each other; -1 = none (root)
  std::optional<MixedPrecision> mp;   // this unit's own policy
  std::shared_ptr<const UnitLayout> layout = {};  // planned; null: made from the tensors
  std::optional<UnitSharding> sharding;           // nullopt: the policy's groups, along dim 0
  bool first_stage = false, last_stage = false;   // whose passes alone use it; neither: all do
  // Gathered at its first use in a step and kept to the end of it, over all of its passes. Such a
  // unit may share the module of one other, and is gathered ahead with it.
  bool once_a_step = false;
  std::shared_ptr<const Later> later = {};
};

// Planned units over the live model. Local. Throws Error(bad_module) for a module or parameter that
// the outline lists and the model lacks.
MESHWRIGHT_API std::vector<UnitSpec> bind_units(torch::nn::Module& model,
                                                const ModelOutline& outline,
                                                const std::vector<PlannedUnit>& units);

// The ranks that a model is sharded over, and what was done to it before.
struct ShardGroups {
  std::shared_ptr<Group> shard;      // the ranks that share one copy
  std::shared_ptr<Group> replicate;  // the ranks that hold the same shard, or null
  std::string shard_axis, replicate_axis;
  // Replicas along it go their own ways (ShardingPolicy::independent_replicas); "": none do.
  std::string independent_axis;
  std::shared_ptr<Group> data;      // losses are summed over it; null: the whole world
  std::shared_ptr<Group> pipeline;  // the ranks of pp, which hold other parameters, or null
  std::shared_ptr<TensorParallel> tensor_parallel;
  std::shared_ptr<ExpertParallel> expert_parallel;
  std::vector<std::pair<std::string, at::Tensor>> whole;  // frozen, whole on every rank
  std::vector<std::string> copies;  // parameters that another stage counts in the norm
  std::shared_ptr<const Later> later = {};
};

// Collective over both groups. The units must not share parameters and together hold all of the
// model's; the first to run encloses all others. Throws Error(bad_module) for a module without
// hooks or a parameter without a dimension.
MESHWRIGHT_API std::unique_ptr<ParallelModel> shard_model(std::shared_ptr<torch::nn::Module> model,
                                                          std::vector<UnitSpec> units,
                                                          const ShardingPolicy& policy,
                                                          ShardGroups groups,
                                                          std::shared_ptr<World> world);

}  // namespace meshwright
