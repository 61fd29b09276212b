// ring_zero: every rank computes with whole parameters, but the ranks of a ring (a host, say) share
// the optimizer's work out: each reduces, keeps and updates its slice, and gives it to the others.
// Between the rings only slices travel.
//
// Where fsdp2 asks for the number of copies (dp_replicate_size), this asks for the size of a ring
// and works the copies out. This half plans, without LibTorch; ring_zero_runtime.cpp runs.
#include <meshwright/plugin_main.h>

#include <algorithm>
#include <array>

#include "buckets.h"

namespace {

using namespace meshwright;

// Attention whole on every rank, only the MLP split: fewer collectives where heads do not divide.
TpPlanEntries mlp_only(const ModelOutline&, bool) {
  TpPlanEntries plan;
  for (const char* name : {"gate_proj", "up_proj"})
    plan.emplace_back(std::string("model.layers.*.mlp.") + name, *parse_style("colwise"));
  plan.emplace_back("model.layers.*.mlp.down_proj", *parse_style("rowwise"));
  return plan;
}

constexpr std::array kPlans = {named_tp_plan<mlp_only>("ring_zero_mlp_only")};

class RingZero final : public Strategy {
 public:
  void validate(const StrategyConfig& config, Diagnostics& diagnostics) const override {
    if (config.sizes().dp_replicate > 1)
      diagnostics.add(option_error(config.distributed(), "dp_replicate_size",
                                   ErrorCode::option_refused,
                                   "ring_zero works the number of copies out itself; "
                                   "dp_replicate_size must stay 1",
                                   "1")
                          .help("set distributed.ring_zero.ring_size = 4"));
  }

  MeshPlan plan_mesh(const MeshRequest& request) const override {
    constexpr std::array<std::string_view, 4> kRefused = {"ep", "cp", "pp", "dp_replicate"};
    refuse_sizes(request, "ring_zero", kRefused);
    MeshRequest sized = request;
    int64_t dp = resolve_dp_size(request);
    int64_t ring = std::min(dp, ring_zero::kOptions.read(request.config.own()).ring_size);
    while (dp % ring != 0) --ring;
    // A ring of one would share nothing; then all of dp is one ring.
    if (ring == 1) ring = dp;
    sized.config.sizes().dp_replicate = dp / ring;
    MeshPlan plan = plan_sharded_mesh(sized);
    if (dp / ring > 1)
      plan.notices.push_back("ring_zero: " + std::to_string(dp / ring) + " rings of " +
                             std::to_string(ring) + " ranks");
    return plan;
  }

  // Whole copies, but for the slices, buckets and collectives of this strategy.
  ShardingPlan plan_sharding(const ShardingRequest& request) const override {
    using Phase = Communication::Phase;
    ShardingPlan plan = replicated_plan(request);
    const Mesh& mesh = *request.mesh.device_mesh;
    const StrategyConfig& config = request.config;
    const MixedPrecision& mp = config.mp_policy();
    int64_t ring = mesh.size("dp_shard"), copies = mesh.size("dp_replicate"),
            place = mesh.coordinate(request.rank, "dp_shard");
    std::vector<int64_t> counts;
    for (const auto& p : plan.parameters) counts.push_back(element_count(p.local_shape));

    OwnCost& own = plan.own_cost.emplace();
    own.replaces = true;
    int64_t padded = 0, slices = 0, largest = 0;
    int64_t reduces = ring_zero::kOptions.read(config.own()).reduce_every_micro_batch
                          ? request.workload.accumulation
                          : 1;
    for (const ring_zero::Bucket& bucket :
         ring_zero::make_buckets(counts, ring_zero::bucket_elements(config), ring)) {
      int64_t whole = bucket.slice * ring;
      auto add = [&](Phase phase, const char* axis, const char* op, int64_t ranks, int64_t count,
                     int64_t payload) {
        Communication& row =
            own.schedule.emplace_back(Communication{"", phase, axis, op, ranks, count, payload});
        row.overlaps = phase == Phase::reduction;  // beside the backward
      };
      add(Phase::reduction, "dp_shard", "reduce_scatter", ring, reduces,
          whole * dtype_size(mp.reduce));
      add(Phase::reduction, "dp_replicate", "all_reduce", copies, reduces,
          bucket.slice * dtype_size(mp.reduce));
      add(Phase::update, "dp_shard", "all_gather", ring, 1, whole * dtype_size(mp.param));
      padded += whole, slices += bucket.slice, largest = std::max(largest, whole);
      for (size_t i = 0; i < bucket.members.size() && ring > 1; ++i) {
        size_t p = bucket.members[i];
        ring_zero::Piece piece = ring_zero::piece_of(bucket, i, counts[p], place);
        plan.parameters[p].local_range = Chunk{piece.begin, piece.end};
        plan.parameters[p].local_shape = {piece.end - piece.begin};
      }
    }
    for (ParameterPlacement& p : plan.parameters) {
      std::erase_if(p.placement, [](const auto& where) { return where.first.starts_with("dp"); });
      if (ring > 1) p.placement.insert(p.placement.begin(), {"dp_shard", "flat"});
      if (copies > 1) p.placement.insert(p.placement.begin(), {"dp_replicate", "replicate"});
    }

    int64_t storage = dtype_size(request.workload.storage);
    bool casts = mp.param != request.workload.storage;
    own.bytes.weights = padded * dtype_size(mp.param) + (casts ? slices * storage : 0);
    own.bytes.gradients = slices * storage;
    own.bytes.optimizer = slices * storage * request.workload.optimizer_states;
    // Whole gradients wait for the last micro-batch or are those of one bucket; another is sent and
    // received; its sums stay.
    bool waits = request.workload.accumulation > 1 && reduces == 1;
    own.bytes.transient = ((waits ? padded : largest) + 2 * (largest - largest / ring) + slices) *
                          dtype_size(mp.reduce);
    return plan;
  }
};

constexpr std::array kStrategies = {
    describe<RingZero>(
        {.name = "ring_zero",
         .summary = "Whole parameters, optimizer state shared out within rings of ranks",
         .options = ring_zero::kOptions.declared,
         .tp_plans = kPlans}),
};

}  // namespace

MESHWRIGHT_PLUGIN("ring_zero", "2.0.0", "Meshwright examples", "Apache-2.0",
                  "ZeRO-1 and 2 within rings, as a third party would write it", kStrategies)
