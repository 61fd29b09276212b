// What a layout costs: bytes a rank and bytes on each mesh axis, in closed form. docs/cost_model.md
// derives every formula.
//
// All functions are pure and local. They throw Error(rank_out_of_range) for a rank outside the
// mesh, Error(model_does_not_fit) when a dimension cannot be cut as the sizes ask.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/mesh_plan.h"
#include "meshwright/outline.h"
#include "meshwright/pipeline.h"
#include "meshwright/tp_plan.h"

namespace meshwright {

// One training step, as far as memory and traffic depend on it.
struct Workload {
  int64_t local_batch = 1, seq_len = 0,
          accumulation = 1;        // seq_len 0: activation traffic is not counted
  DType storage = DType::float32;  // of the weights the optimizer updates
  int64_t optimizer_states = 2;    // tensors per parameter: AdamW 2, SGD with momentum 1, SGD 0
};

struct FootprintRequest {
  const ModelOutline& outline;  // of this rank's pipeline stages
  const MeshPlan& mesh;
  const TpPlan& tp;
  const StrategyConfig& config;
  Workload workload;
  int64_t rank = 0;
};

// Where one parameter lies on the rank asked about. Axes are those that cut or copy parameters: the
// FSDP axis under its own name
// ("dp_shard", or "dp_shard_cp" in place of its two parts), dp_replicate, tp; for experts ep and
// ep_shard. pp is none of them: a stage's parameters exist on that stage alone.
struct ParameterPlacement {
  std::string name;
  std::vector<int64_t> global_shape, local_shape;  // local: unpadded
  std::vector<std::pair<std::string, std::string>>
      placement;                     // axis of size > 1 -> "shard(0)" | "replicate" | "flat"
  std::optional<Chunk> local_range;  // flat buffers: the elements of the parameter this rank holds
};

// One row for each (axis, op); none for groups of one rank.
struct WireRow {
  std::string axis,
      op;  // op: "all_gather", "reduce_scatter", "all_reduce", "broadcast", "send", "all_to_all"
  int64_t count = 0;  // collectives a step
  int64_t bytes = 0;  // bytes a rank sends a step
};

struct Bytes {
  int64_t weights = 0, gradients = 0, optimizer = 0;
  int64_t transient =
      0;  // gathered parameters and unreduced gradients at the peak, beyond the shards
  int64_t activations = 0;  // saved for backward, an estimate; 0 when seq_len is not known
};

struct UnitCost {
  std::string name;
  int64_t parameters = 0;    // elements, after tp
  int64_t padded_bytes = 0;  // gathered, in the gather dtype
  bool reshards = false;
};

struct Footprint {
  std::vector<UnitCost> units;
  std::vector<ParameterPlacement> parameters;
  Bytes bytes;
  std::vector<WireRow> wire;
};

// The policy in which sharded strategies differ, for the closed form they share. With an expert
// mesh, experts are cut over ep and ep_shard, and embedding and head are units of their own.
struct ShardingPolicy {
  std::optional<bool> reshard_after_forward =
      {};  // nullopt: all units of a list but its last, none under pp; the root never
  bool reduce_every_micro_batch = false;
  int64_t prefetch_depth = 1;  // units gathered ahead in backward
};
MESHWRIGHT_API Footprint fully_sharded_footprint(const FootprintRequest& request,
                                                 const ShardingPolicy& policy);
// Whole parameters on every rank; gradients all-reduced once a step, in buckets filled in reverse
// order of the parameters as torch's reducer does: the parameter that reaches the limit closes its
// bucket.
struct ReplicatedPolicy {
  int64_t first_bucket_bytes = int64_t{1} << 20, bucket_bytes = int64_t{25} << 20;
  bool gradient_as_bucket_view = true;  // gradients live in the buckets: no second copy
};
MESHWRIGHT_API Footprint replicated_footprint(const FootprintRequest& request,
                                              const ReplicatedPolicy& policy = {});
// ZeRO levels 0-3 on flat buffers, one a unit, cut evenly over the ranks with the padding at the
// end; outside units, one a bucket.
struct FlatPolicy {
  int level = 3;
  bool preserve_fp32_weights = false, grad_reduce_in_fp32 = false;
  std::vector<std::string> unit_classes =
      {};  // names of module classes that form a unit, paths allowed; empty: the repeated layers
  int64_t bucket_elements = 40'000'000;  // of parameters outside units; 0: no limit
  int64_t prefetch_depth = 1;            // units gathered ahead at level 3
  // The options that set level and unit_classes, for errors: "distributed.mine.level". Empty: there
  // are none.
  std::string level_key = {}, unit_classes_key = {};
};
// Parameters packed one after another: a unit, or a bucket of what lies outside units.
struct FlatBuffer {
  std::string name;  // of the unit's module; "root", or "root[2]" where there are several buckets
  std::vector<size_t> parameters;  // indices into ModelOutline::parameters
  bool unit = false;
};
// `elements`: of each parameter on this rank, after tensor parallelism. A tied weight outside units
// stands alone. Throws Error(unit_class_missing) for a class that does not occur in the model, and
// when no unit results.
MESHWRIGHT_API std::vector<FlatBuffer> flat_buffers(const ModelOutline& outline,
                                                    const std::vector<int64_t>& elements,
                                                    const FlatPolicy& policy);
// Throws as flat_buffers().
MESHWRIGHT_API Footprint flat_footprint(const FootprintRequest& request, const FlatPolicy& policy);
// Traffic of the plan's styles over tp, added by each of the above. Activations count only when
// seq_len is known.
MESHWRIGHT_API std::vector<WireRow> tp_wire(const FootprintRequest& request);
// Hidden states and their gradients between the stages of different ranks. Not part of the
// footprints above: the stages are the engine's, alike for every strategy.
MESHWRIGHT_API std::vector<WireRow> pipeline_wire(const FootprintRequest& request,
                                                  const PipelinePlan& plan);

}  // namespace meshwright
