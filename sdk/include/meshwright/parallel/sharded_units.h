// Sharded parameters: each unit (a module and its parameters) keeps 1/n of every parameter on a
// rank, gathers them before its forward and its backward, frees them after, and reduces gradients
// as soon as its backward is done (ZeRO stage 3: Rajbhandari et al. 2020; the run-time contract is
// that of torch FSDP2's fully_shard). Strategies differ in the layout of shards and in policy only.
//
// The module's own parameters stay the same tensors: their storage is empty outside the unit, and
// any use of it there throws, naming the parameter. The optimizer works on flat shards: one values
// and one gradients tensor a dtype, whatever the number of parameters.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/footprint.h"
#include "meshwright/parallel/group.h"
#include "meshwright/parallel/parallel.h"

namespace meshwright {

// How a parameter is cut. rows: along dim 0 into chunks of ceil(rows / n), the last ones short or
// empty, as torch.chunk. flat: the unit's parameters as one buffer, cut evenly.
enum class ShardLayout : uint8_t { rows, flat };

// How a unit is cut where it differs from the rest of the model: experts over an axis of their own.
struct UnitSharding {
  std::shared_ptr<Group> shard;  // of one rank: nothing is gathered or reduced
  std::string axis;
  int64_t dim = 0;  // cut of parameters with more dimensions than that, others along 0; a dim above
                    // 0 must divide evenly
  double divisor = 1;  // gradients are sums over `shard` divided by this
};

struct UnitSpec {
  std::string name;                     // dotted, or "root"
  torch::nn::Module* module = nullptr;  // must be hookable (MESHWRIGHT_MODULE)
  std::vector<std::pair<std::string, at::Tensor>>
      parameters;                        // full names; a meta tensor gets storage but no values
  bool reshard_after_forward = true;     // false: stays gathered until its backward ends
  int64_t module_list = -1;              // units of one list prefetch each other; -1 = none (root)
  std::optional<MixedPrecision> mp;      // this unit's own policy
  std::optional<UnitSharding> sharding;  // nullopt: the policy's groups, along dim 0
};

// The units that plans show for `outline` (plan_units), over the live model: the items of each
// module list, which prefetch each other, and the root, which stays gathered.
// `reshard_after_forward` of the items; nullopt: all but the last of their list. Local. Throws
// Error(bad_module) for a module or parameter that the outline lists and the model lacks.
MESHWRIGHT_API std::vector<UnitSpec> unit_specs(torch::nn::Module& model,
                                                const ModelOutline& outline,
                                                std::optional<bool> reshard_after_forward = {});

// Units on flat buffers, as flat_buffers() makes them: one a unit, freed after forward if
// `reshard`, and one a bucket of what lies outside units. Call it after apply_tensor_parallel():
// buckets are filled with what this rank has. Local. Throws as flat_buffers() and unit_specs().
MESHWRIGHT_API std::vector<UnitSpec> flat_unit_specs(torch::nn::Module& model,
                                                     const ModelOutline& outline,
                                                     const FlatPolicy& policy, bool reshard);

struct ShardedPolicy {
  ShardLayout layout = ShardLayout::rows;
  std::shared_ptr<Group> shard;      // the ranks that share one copy
  std::shared_ptr<Group> replicate;  // the ranks that hold the same shard, or null
  std::string shard_axis, replicate_axis;
  MixedPrecision mp;
  bool reduce_every_micro_batch = false;  // false: gradients wait unsharded for the last one
  // Chains within a list: unit i prefetches i+1 .. i+forward_depth, and i-1 .. i-backward_depth.
  // Without them, the next unit in the order of the first forward is prefetched, one ahead.
  bool explicit_prefetch = false;
  bool prefetch = true;  // false: nothing is gathered ahead
  int64_t forward_depth = 1, backward_depth = 2;
  bool cpu_offload = false;  // shards, gradients and optimizer on the CPU
  bool pin_memory = true;
  std::shared_ptr<Group> data;  // losses are summed over it; null: the whole world
  std::shared_ptr<TensorParallel> tensor_parallel;  // what was done to the model before, or null
  std::shared_ptr<ExpertParallel> expert_parallel;  // likewise
  std::vector<std::pair<std::string, at::Tensor>>
      whole;  // frozen parameters that every rank keeps whole

  // The flat layout can keep more whole (ZeRO levels 0 to 2). Parameters: gathered once after each
  // update and never freed. Gradients: summed here and reduced once, in the last micro-batch. Level
  // 0 is both, with `shard` a group of one and its copies in `replicate`.
  bool whole_parameters = false, whole_gradients = false;
  bool overlap_gather = true;     // whole parameters: beside the next forward; false: before
                                  // after_optimizer_step() returns
  bool overlap_reduction = true;  // whole gradients: beside the backward; false: in end_step()
  // What the optimizer updates and what gradients add up in. Null: the parameters' storage dtype.
  std::optional<DType> main_weights, main_gradients;
  // A gradient's mean over the ranks is taken in the sum itself (float16 halves it before, half
  // after); before it; or not at all until clip_grad_norm(), so that parameters() has sums in
  // between.
  enum class Average : uint8_t { in_sum, before_sum, with_clipping };
  Average average = Average::in_sum;
  bool double_buffer = false;  // two buffers for gathers and two for reductions, as large as the
                               // largest unit, kept and used in turn
  bool registered =
      false;  // those come from the group's back end where that has memory of its own (NCCL)
  bool check_nan = false;  // NaN or infinity in the reduced gradients ends the step with
                           // Error(nonfinite), which names the parameter
  bool check_own_nan =
      false;            // the same of each rank's own gradients, before they are reduced: slow
  std::string options;  // table of the strategy's options, for help lines
};

// Collective over both groups. The units must not share parameters and together hold all of the
// model's; the first to run encloses all others. Throws Error(bad_module) for a module without
// hooks or a parameter without a dimension.
MESHWRIGHT_API std::unique_ptr<ParallelModel> shard_model(std::shared_ptr<torch::nn::Module> model,
                                                          std::vector<UnitSpec> units,
                                                          ShardedPolicy policy,
                                                          std::shared_ptr<World> world);

}  // namespace meshwright
