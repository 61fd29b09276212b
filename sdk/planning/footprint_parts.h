// What the closed forms of all strategies share: the axes a rank lies on, its share of each
// parameter, and sums of traffic. Not public.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "meshwright/footprint.h"
#include "sdk/base/context_plan.h"
#include "sdk/base/run_memory.h"
#include "sdk/base/shared_schemas.h"
#include "unit_layout.h"

namespace meshwright {

struct ActivationQuestion {
  bool whole_layers = true;  // as the strategy tells apply_activation_checkpointing()
  // Bytes that are counted elsewhere and add up from a stage's first backward on, so that they are
  // not there yet at the fullest moment of some schedules.
  int64_t gradients = 0;
  // The same without stages: bytes whose memory comes with the backward of each layer.
  int64_t coming = 0;
  MemoryFacts facts = {};
};
// Bytes that the passes in flight on a rank keep for backward; 0 when seq_len is not known.
MESHWRIGHT_API int64_t activation_bytes(const ShardingRequest& request,
                                        const ActivationQuestion& asked);
MESHWRIGHT_API int64_t activation_bytes(const ShardingRequest& request, bool whole_layers,
                                        int64_t gradients = 0);

}  // namespace meshwright

namespace meshwright::footprint {

struct Axis {
  std::string name;
  int64_t size = 1, index = 0;
  bool operator==(const Axis&) const = default;
};

// A parameter after tensor and expert parallelism, before data-parallel sharding.
struct Share {
  std::vector<int64_t> shape;
  int64_t elements = 0;
  bool expert = false;  // cut over ep
  std::optional<int64_t> tp_dim;
  Region part = {};  // of the whole tensor: a box
};

// Where a rank lies on the axes.
struct RankAxes {
  Axis shard, replicate, tp, ep, ep_shard;
  bool has_experts_mesh = false;
  bool operator==(const RankAxes&) const = default;
};

}  // namespace meshwright::footprint

namespace meshwright {

struct MeshLayout : footprint::RankAxes {
  std::vector<footprint::Share> shares;  // parallel to ModelOutline::parameters
  TpPlanEntries styles;                  // that the shares are cut by
};

}  // namespace meshwright

namespace meshwright::footprint {

using Layout = MeshLayout;
// The plan's, where it was made from the same mesh, rank, styles and parameters; else made anew.
// Throws Error(model_does_not_fit) when experts do not divide, Error(tp_plan_does_not_fit) when a
// parameter lacks the dimension that its style cuts.
std::shared_ptr<const Layout> layout_of(const ShardingRequest& request, const ShardingPlan& plan);
// A plan with its mesh_layout, and the placement of every parameter before the data-parallel ranks
// share it. Throws Error(unknown_key) where `options` name a field that no policy of `fields` has.
ShardingPlan begin_plan(const ShardingRequest& request, std::string_view data_text,
                        const PolicyOptions& options, std::span<const std::string> fields);
// The fields of a ShardingPolicy, as PolicyOptions name them.
std::span<const std::string> sharding_fields();
// Lays out the parameters of a unit. Throws Error(model_does_not_fit) for a dimension that does not
// divide, and for a parameter without one where it would be cut.
std::shared_ptr<const UnitLayout> lay_out_unit(const ShardingRequest& request, const Layout& layout,
                                               const ShardingPolicy& policy,
                                               const PlannedUnit& unit);
// As planned, after check_unit_layout(); laid out anew where the unit has no layout.
std::shared_ptr<const UnitLayout> unit_layout_of(const ShardingRequest& request,
                                                 const Layout& layout, const ShardingPlan& plan,
                                                 const PlannedUnit& unit);
// Ranks that hold copies under a replicated plan: all that work on other samples or other parts of
// them, dp * cp of them, under the name of an axis that the mesh has; alone, maybe of none. Under a
// mesh that shards, replicas and shards alike hold copies. Throws Error(no_such_axis) when no axis
// holds so many ranks.
Axis replicated_axis(const ShardingRequest& request, const Layout& layout);
// Whether a plan of rows runs as copies, which one rank is that shares with none but those of tp
// (sdk/parallel/parallelize.cpp).
bool alone_as_copies(const ShardingRequest& request, const ShardingPlan& plan);
// How many of the bytes of gradients have no memory while all activations are there.
int64_t coming_gradients(const ShardingRequest& request, const ShardingPlan& plan,
                         MemoryFacts::Where where, int64_t gradients);
// What each layout costs.
Footprint rows_footprint(const ShardingRequest& request, const ShardingPlan& plan);
Footprint flat_footprint(const ShardingRequest& request, const ShardingPlan& plan);
Footprint replicated_footprint(const ShardingRequest& request, const ShardingPlan& plan);

// Modules of an outline by name. Views into it.
class MESHWRIGHT_API ModuleIndex {
 public:
  explicit ModuleIndex(const ModelOutline& outline);
  const ModuleOutline* find(std::string_view name) const;
  // The innermost module of kind layer at or around a name, or "".
  std::string_view layer_of(std::string_view name) const;
  // Whether gradients come to a module: something in it, in its layer or before these trains, in
  // the order of the parameters. What lies before a pipeline's later stages is not known here, and
  // taken to train.
  bool has_backward(std::string_view module) const;

 private:
  std::unordered_map<std::string_view, const ModuleOutline*> modules_;
  std::unordered_set<std::string_view> forward_only_;  // layers, and modules outside of layers
};
// tp_shard_dim() of many parameters of one plan: what its styles cut, and the factors of adapters
// beside that. Views into it and the outline.
class MESHWRIGHT_API CutDims {
 public:
  CutDims(const TpPlan& plan, const ModelOutline& outline);
  std::optional<int64_t> find(std::string_view parameter) const;

 private:
  struct Module {
    bool column = false, embedding = false;
    bool own = false;  // neither Linear nor Embedding: rows of heads are cut
  };
  std::unordered_map<std::string_view, Module> modules_;
};
// Whether a parameter is stored in another dtype than what the optimizer updates. Only what is
// frozen can be; it has no main weights then.
inline bool stored_apart(const ParameterOutline& parameter, const Workload& work) {
  return !parameter.trainable && parameter.dtype != work.storage;
}
inline DType stored_as(const ParameterOutline& parameter, const Workload& work) {
  return parameter.trainable ? work.storage : parameter.dtype;
}
// Moves what is frozen among `parameters` to what every rank keeps whole (JobView::frozen_whole).
void keep_frozen_whole(const ModelOutline& outline, std::vector<size_t>& parameters,
                       std::vector<size_t>& whole);
// Their placements.
void place_whole(const Layout& layout, ShardingPlan& plan);
// Whether adapters are among `parameters`, and what trains of them is less than what is frozen.
bool trains_beside(const ModelOutline& outline, const std::vector<size_t>& parameters);
// Cuts layers of which that is so in two: before the unit of what is frozen comes one of what
// trains, which is gathered once a step (semantics 3.7).
void part_adapters(const ModelOutline& outline, std::vector<PlannedUnit>& units);
bool unit_has_backward(const ShardingRequest& request, const ModuleIndex& index,
                       const PlannedUnit& unit);
// The dimension that a style cuts of a module's parameter.
std::optional<int64_t> cut_dim(bool column, bool embedding, std::string_view parameter);
// Sum of the `count` largest.
int64_t sum_of_largest(std::vector<int64_t> values, int64_t count);

// The policy that holds for this request: the expert options may replace the shared one.
MixedPrecision precision_of(const ShardingRequest& request);
// Runs of the pipeline schedule a step, micro-batches a run, and forward-backward passes a step:
// their product. Without a pipeline a run is one micro-batch.
int64_t runs_of(const ShardingRequest& request);
int64_t micro_batches_of(const ShardingRequest& request);
int64_t passes_of(const ShardingRequest& request);
int64_t pipeline_size(const ShardingRequest& request);
// Sums and products that stop at the largest number instead of overflowing: no configuration is too
// large to be costed.
inline int64_t plus(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}
inline int64_t times(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}
template <class... Rest>
int64_t times(int64_t a, int64_t b, Rest... rest) {
  return times(times(a, b), rest...);
}
// a * b / c, rounded down.
int64_t scaled(int64_t a, int64_t b, int64_t c);

using Phase = Communication::Phase;

// Collects the rows of a schedule: equal collectives of one unit and phase are one row.
class ScheduleBuilder {
 public:
  // Of what add() adds from now on.
  void of_unit(std::string name, bool gathers_overlap, bool reductions_overlap);
  void of_activations() { of_unit({}, false, false); }
  // `count` collectives over `axis` with `payload` bytes each; nothing for groups of one rank.
  void add(const Axis& axis, Phase phase, std::string_view op, int64_t count, int64_t payload);
  const CommunicationSchedule& rows() const { return rows_; }

 private:
  CommunicationSchedule rows_;
  std::string unit_;
  bool gathers_overlap_ = false, reductions_overlap_ = false;
  size_t begin_ = 0;  // of the unit's rows
};

// Rows that are alike for every strategy: tp, ep and cp, of activations; and the one all-reduce
// over tp, in the dtype `reduce`, of gradients that are partial sums, of which this rank holds so
// many elements each (parallel to ModelOutline::parameters).
void add_common_rows(const ShardingRequest& request, const std::vector<int64_t>& gradient_elements,
                     DType reduce, ScheduleBuilder& schedule);
void add_tp_activations(const ShardingRequest& request, ScheduleBuilder& schedule);
void add_partial_gradients(const ShardingRequest& request, const std::vector<int64_t>& elements,
                           DType reduce, ScheduleBuilder& schedule);
// How attention of this rank meets the tokens of others; nullopt: it has them all. "auto" goes by
// what the layers send. Throws as plan_context().
struct ContextAttentionPlan {
  ContextPlan plan;
  int64_t ranks = 1, rank = 0, heads = 1, kv_heads = 1;  // heads of a rank of tp
};
std::optional<ContextAttentionPlan> context_attention_of(const ShardingRequest& request);
void add_context_rows(const ShardingRequest& request, const ModuleIndex& index,
                      ScheduleBuilder& schedule);
// Bytes a token of a rank beyond what is saved: in the backward of one layer, keys and values of
// others with their gradients as they are added up; and room that stays.
struct ContextHeld {
  int64_t backward = 0, room = 0;
  int64_t all() const { return plus(backward, room); }
};
ContextHeld context_transient(const ShardingRequest& request,
                              const ContextAttentionPlan& attention);
// Tokens of one forward-backward pass on this rank; 0 when seq_len is not known.
int64_t tokens_of(const ShardingRequest& request);
// Bytes of what a stage hands to the next one for a pass; 0 when seq_len is not known.
int64_t message_bytes(const ShardingRequest& request);
// Times the forward collectives of a module run: 2 where activation checkpointing computes it
// again.
int64_t forward_runs(const ShardingRequest& request, const ModuleIndex& index,
                     std::string_view module);
bool in_attention(std::string_view module);
}  // namespace meshwright::footprint
