// How a model lies on the ranks: its units, its gradient buckets, and the region of every
// parameter. A strategy makes the plan on paper (Strategy::plan_sharding), `meshwright plan` shows
// what it costs (footprint_of), and Strategy::parallelize executes it.
//
// All functions are pure and local. They throw Error(rank_out_of_range) for a rank outside the
// mesh, Error(model_does_not_fit) when a dimension cannot be cut as the sizes ask.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/mesh_plan.h"
#include "meshwright/outline.h"
#include "meshwright/region.h"
#include "meshwright/tp_plan.h"

namespace meshwright {

// One training step, as far as memory and traffic depend on it.
struct Workload {
  int64_t local_batch = 1, seq_len = 0, accumulation = 1;  // seq_len 0: activations are not counted
  DType storage = DType::float32;                          // of the weights the optimizer updates
  int64_t optimizer_states = 2;  // tensors per parameter: AdamW 2, SGD with momentum 1, SGD 0
};

struct ShardingRequest {
  const ModelOutline& outline;  // of this rank's pipeline stages
  const MeshPlan& mesh;
  const TpPlan& tp;
  const StrategyConfig& config;
  Workload workload = {};
  int64_t rank = 0;
  std::shared_ptr<const Later> later = {};
};

class UnitLayout;
struct MeshLayout;

// Parameters that are gathered and reduced together.
struct PlannedUnit {
  // Of its module; "root", or "root[1]" where there are several buckets, "root of stage 3".
  std::string name;
  bool last_of_module_list = false;
  std::vector<size_t> parameters = {};    // indices into ModelOutline::parameters
  std::string module = {};                // dotted; "": the model itself, which encloses all others
  bool root = false;                      // of what lies outside of all modules that are units
  int64_t module_list = -1;               // units of one list prefetch each other; -1: of none
  bool reshard_after_forward = false;     // false: stays gathered until its backward ends
  std::optional<MixedPrecision> mp = {};  // the unit's own; nullopt: the plan's
  bool experts = false, once_a_step = false;  // cut along dim 1 over ep_shard; kept for a step
  // Of a pipeline, the first or the last: whose passes alone use it; -1: all that run its module.
  int64_t stage = -1;
  bool last_stage = false;
  // Where the parameters lie in the gathered buffer and in the shards. Null: laid out when it is
  // needed; whoever changes `parameters` of a finished plan resets it.
  std::shared_ptr<const UnitLayout> layout = {};
  std::shared_ptr<const Later> later = {};
};

// The units of a model under the general rule (semantics 3.1): every direct item of a module list
// is one, nested lists first; what is left is "root", the last one. `reshard_after_forward`: of the
// items; nullopt: all but the last of their list.
MESHWRIGHT_API std::vector<PlannedUnit> plan_units(const ModelOutline& outline,
                                                   std::optional<bool> reshard_after_forward = {});

// Which options of a strategy set which fields of its policy, so that messages about a field can
// name them: {{"flat.unit_classes", "distributed.mine.units"}}.
class PolicyOptions {
 public:
  PolicyOptions() = default;
  PolicyOptions(std::initializer_list<StringMap::value_type> keys) : keys_(keys) {}
  void set(std::string field, std::string key) {
    keys_.emplace_back(std::move(field), std::move(key));
  }
  // "" where no option was named.
  MESHWRIGHT_API std::string of(std::string_view field) const;
  const StringMap& keys() const { return keys_; }  // field, option

 private:
  StringMap keys_;
};

// Lists of layers that are frozen as a whole beside a trainable rest.
struct FrozenPolicy {
  enum class Place : uint8_t { with_root, per_layer, replicated };
  Place place = Place::with_root;  // in the root unit, in units as they are, whole on every rank
};

struct PrefetchPolicy {
  bool enabled = true;  // false: nothing is gathered ahead
  // Chains within a list of units: unit i gathers i+1 .. i+forward ahead, and in backward i-1 ..
  // i-backward. Without chains the next unit in the order of the first forward, one ahead.
  bool chains = false;
  int64_t forward = 1, backward = 2;
  MESHWRIGHT_API int64_t ahead() const;  // units gathered ahead, at most
};

struct OffloadPolicy {
  bool cpu = false;        // shards, gradients and optimizer state live on the CPU
  bool pin_memory = true;  // in pinned memory there
};

struct PrecisionPolicy {
  MixedPrecision mp = {};
  // What the optimizer updates and what gradients add up in. nullopt: the parameters' storage
  // dtype.
  std::optional<DType> main_weights = {}, main_gradients = {};
};

struct ReductionPolicy {
  // The mean over the ranks is taken in the sum itself (float16 halves it before, half after),
  // before it, or not at all until clip_grad_norm(), so that parameters() has sums in between.
  enum class Average : uint8_t { in_sum, before_sum, with_clipping };
  Average average = Average::in_sum;
  bool every_micro_batch = false;  // false: gradients wait unsharded for the last one
  bool overlap = true;  // gradients kept whole: beside the backward; false: in end_step()
};

struct BufferPolicy {
  bool rotating = false;    // two for gathers and two for reductions, as large as the largest unit
  bool registered = false;  // from the group's back end where that has memory of its own (NCCL)
};

struct NanChecks {
  bool reduced = false;  // NaN or infinity in a reduced gradient ends the step with an error
  bool own = false;      // the same of each rank's own gradients, before they are reduced: slow
};

// Flat buffers: what forms a unit, and how the rest is packed.
struct FlatBufferPolicy {
  std::vector<std::string> unit_classes = {};  // module classes, paths allowed; empty: the layers
  int64_t bucket_elements = 40'000'000;        // of parameters outside units; 0: no limit
};

// How a unit is cut. rows: every parameter along dim 0 into chunks of ceil(rows / n), the last ones
// short or empty, as torch.chunk. flat: the unit's parameters as one buffer, cut evenly.
enum class ShardLayout : uint8_t { rows, flat };

// What strategies that shard differ in. The defaults are torch FSDP2's.
struct ShardingPolicy {
  ShardLayout layout = ShardLayout::rows;
  // nullopt: all units of a list but its last, none under a pipeline. Never the root.
  std::optional<bool> reshard_after_forward = {};
  // ZeRO: 3 shards parameters, gradients and optimizer state; 2 keeps parameters whole, 1 gradients
  // too, 0 everything. Below 3 for flat buffers only.
  int level = 3;
  bool overlap_gather = true;  // whole parameters: beside the next forward, or before it
  PrefetchPolicy prefetch = {};
  OffloadPolicy offload = {};
  PrecisionPolicy precision = {};
  ReductionPolicy reduction = {};
  BufferPolicy buffers = {};
  NanChecks checks = {};
  FrozenPolicy frozen = {};
  FlatBufferPolicy flat = {};
  // Replicas along dp_replicate go their own ways: gradients are averaged within each of them only,
  // and the strategy brings them together when it likes. Of rows, without expert parallelism.
  bool independent_replicas = false;
  PolicyOptions options = {};
  std::shared_ptr<const Later> later = {};
  bool keeps_parameters() const { return level <= 2; }
  bool keeps_gradients() const { return level <= 1; }
};

// Whole parameters on every rank; gradients all-reduced once a step in buckets.
struct ReplicatedPolicy {
  int64_t first_bucket_bytes = int64_t{1} << 20, bucket_bytes = int64_t{25} << 20;
  bool gradient_as_bucket_view = true;  // gradients live in the buckets: no second copy
  MixedPrecision mp = {};
  bool broadcast_buffers = false;  // rank 0's buffers before every step
  // false: a parameter without a gradient ends the step with an error that names it.
  bool find_unused_parameters = false;
  bool static_graph = false;  // the first step tells which are unused; a change later is an error
  std::string axis = "dp";
  PolicyOptions options = {};
  std::shared_ptr<const Later> later = {};
};

// Buckets are filled as torch's reducer does: the parameter that reaches the limit closes its
// bucket.
struct GradientBucket {
  int64_t begin = 0, end = 0;   // elements, in the order given
  std::vector<size_t> members;  // indices into it
  std::shared_ptr<const Later> later = {};
};

// Where one parameter lies on the rank asked about. Axes are those that cut or copy parameters: the
// FSDP axis under its own name ("dp_shard", or "dp_shard_cp" in place of its two parts),
// dp_replicate, tp; for experts ep and ep_shard. pp is none of them: a stage's parameters exist on
// that stage alone.
struct ParameterPlacement {
  std::string name;
  std::vector<int64_t> global_shape, local_shape;  // local: unpadded
  // axis of size > 1 -> "shard(0)" | "replicate" | "flat"
  std::vector<std::pair<std::string, std::string>> placement;
  std::optional<Chunk> local_range;  // flat buffers: the elements of the parameter this rank holds
  Region region = {};                // of the whole tensor: what this rank updates and saves
  std::shared_ptr<const Later> later = {};
};

// Collectives of one kind that a rank takes part in at one place of a training step.
struct Communication {
  enum class Phase : uint8_t { forward, backward, reduction, update };
  std::string unit = {};           // PlannedUnit::name, or "bucket[2]"; empty: of activations
  Phase phase = Phase::forward;    // what backward computes again counts as forward
  std::string axis = {}, op = {};  // "all_gather", "reduce_scatter", "all_reduce", "broadcast",
                                   // "send", "all_to_all"
  int64_t ranks = 1;               // of the axis
  int64_t count = 0;               // a step
  // Bytes of each: of the whole tensor that is gathered, reduced or exchanged; of the message.
  int64_t payload = 0;
  // Steps from one time to the next: count is that of one time.
  int64_t every = 1;
  bool overlaps = false;  // computation goes on beside it
  std::shared_ptr<const Later> later = {};
  MESHWRIGHT_API int64_t sent() const;  // bytes that a rank sends for one of them
};
using CommunicationSchedule = std::vector<Communication>;

struct Bytes {
  int64_t weights = 0, gradients = 0, optimizer = 0;
  // Gathered parameters and unreduced gradients at the peak, beyond the shards.
  int64_t transient = 0;
  int64_t activations = 0;  // saved for backward, an estimate; 0 when seq_len is not known
};

// What a strategy holds and sends that its plan does not say, where its running half does more than
// execute the plan.
struct OwnCost {
  Bytes bytes = {};
  CommunicationSchedule schedule = {};
  // false: beside what the plan costs. true: in place of its weights, gradients, optimizer state
  // and transient memory, and of its collectives on data-parallel axes.
  bool replaces = false;
  std::shared_ptr<const Later> later = {};
};

struct ShardingPlan {
  bool replicated = true;                           // whole parameters on every rank
  ReplicatedPolicy replication = {};                // if replicated
  ShardingPolicy sharding = {};                     // else
  std::vector<PlannedUnit> units = {};              // if sharded, in the order of the model
  std::vector<GradientBucket> buckets = {};         // if replicated; parameters in reverse order
  std::vector<size_t> whole = {};                   // frozen parameters that every rank keeps whole
  std::vector<ParameterPlacement> parameters = {};  // parallel to ModelOutline::parameters
  // "full" activation checkpointing recomputes layers as a whole; else their blocks, one by one.
  bool recompute_whole_layers = true;
  bool allocate_before_sharding = false;  // meta parameters get memory for the whole model first
  std::optional<OwnCost> own_cost = {};
  std::vector<std::string> notices = {};
  std::shared_ptr<const MeshLayout> mesh_layout = {};  // kept for the costs; may be null
  // Gradients are approximate on purpose (sign, top-k, PowerSGD): by how much the sum over the
  // steps of what the optimizer gets may differ from the sum of the exact gradients, as the L2 norm
  // of the difference over that of the exact sum; above 0, below 1. nullopt: they are exact.
  std::optional<double> gradient_tolerance = {};
  std::shared_ptr<const Later> later = {};
};

// Units along rows, by the rule of the model's class (unit_rules.h) or the general one. With an
// expert mesh, experts leave their layer's unit and are cut over ep_shard, and embedding and head
// are units of their own unless tied. Throws Error(conflict) for a parameter outside of the inner
// model under wrap_outer_model = false, Error(out_of_range) for another level than 3.
MESHWRIGHT_API ShardingPlan fully_sharded_plan(const ShardingRequest& request,
                                               const ShardingPolicy& policy = {});
// ZeRO levels 0 to 3 on flat buffers: one per unit, cut evenly over the ranks with the padding at
// the end; outside units, one per bucket, where a tied weight stands alone. Throws
// Error(unit_class_missing) for a class that does not occur in the model and when no unit results,
// Error(out_of_range) for another level.
MESHWRIGHT_API ShardingPlan flat_plan(const ShardingRequest& request,
                                      const ShardingPolicy& policy = {});
MESHWRIGHT_API ShardingPlan replicated_plan(const ShardingRequest& request,
                                            const ReplicatedPolicy& policy = {});

}  // namespace meshwright
