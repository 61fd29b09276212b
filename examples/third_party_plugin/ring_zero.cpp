// ring_zero: shards inside groups of a fixed size (a host, say) and copies between them, so that gathers stay on fast links.
//
// Where fsdp2 asks for the number of copies (dp_replicate_size), this asks for the size of a shard group and works the copies out.
#include <meshwright/plugin_main.h>

#include <algorithm>
#include <array>

namespace {

using namespace meshwright;

constexpr std::array kOptions = {
    int_option("shard_group_size", "8", 1, "Ranks that share one set of shards, at most; the largest divisor of dp up to it is used."),
    bool_option("keep_gathered", false, "Keep gathered parameters from forward to backward: one gather less, more memory."),
};

// Attention whole on every rank, only the MLP split: fewer collectives where heads do not divide.
TpPlanEntries mlp_only(const ModelOutline&, bool) {
  TpPlanEntries plan;
  for (const char* name : {"gate_proj", "up_proj"}) plan.emplace_back(std::string("model.layers.*.mlp.") + name, *parse_style("colwise"));
  plan.emplace_back("model.layers.*.mlp.down_proj", *parse_style("rowwise"));
  return plan;
}

class RingZero final : public Strategy {
 public:
  RingZero() {
    // One name a process; a second instance finds it there.
    std::vector<std::string> names = registered_tp_plans();
    if (std::find(names.begin(), names.end(), "ring_zero_mlp_only") == names.end()) register_tp_plan("ring_zero_mlp_only", mlp_only);
  }

  void validate(const StrategyConfig& config, Diagnostics& diagnostics) const override {
    if (config.shared.sizes.dp_replicate > 1)
      diagnostics.add(Error(ErrorCode::option_refused, "ring_zero works the number of copies out itself; dp_replicate_size must stay 1")
                          .key("distributed.dp_replicate_size")
                          .at(config.shared_values.origin("dp_replicate_size"))
                          .help("set distributed.dp_replicate_size = 1")
                          .help("set distributed.ring_zero.shard_group_size = 4"));
  }

  MeshPlan plan_mesh(const MeshRequest& request) const override {
    constexpr std::array<std::string_view, 2> kRefused = {"ep", "dp_replicate"};
    refuse_sizes(request, "ring_zero", kRefused);
    MeshRequest sized = request;
    int64_t dp = resolve_dp_size(request);
    int64_t shard = std::min(dp, request.config.own.get_int("shard_group_size"));
    while (dp % shard != 0) --shard;
    // A group of one would shard nothing; then all of dp is one group.
    if (shard == 1) shard = dp;
    sized.config.shared.sizes.dp_replicate = dp / shard;
    MeshPlan plan = plan_sharded_mesh(sized);
    if (dp / shard > 1)
      plan.notices.push_back("ring_zero: " + std::to_string(dp / shard) + " copies of " + std::to_string(shard) + " shards");
    return plan;
  }

  Footprint footprint(const FootprintRequest& request) const override {
    ShardingPolicy policy;
    if (request.config.own.get_bool("keep_gathered")) policy.reshard_after_forward = false;
    return fully_sharded_footprint(request, policy);
  }
};

constexpr std::array kStrategies = {
    describe<RingZero>({.name = "ring_zero", .summary = "Shards inside groups of a fixed size, copies between them", .options = kOptions}),
};

}  // namespace

MESHWRIGHT_PLUGIN("ring_zero", "1.0.0", "Meshwright examples", "Apache-2.0",
                  "Hybrid sharding by group size, as a third party would write it", kStrategies)
