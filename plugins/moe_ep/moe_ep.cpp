// moe_ep: experts divided over ep and sharded over ep_shard, everything else as fsdp2 does it.
// Reads [distributed.fsdp2] and [distributed.moe].
#include <array>

#include "meshwright/plugin_main.h"
#include "plugins/fully_sharded/options.h"

namespace {

using namespace meshwright;

class MoeEp final : public ShardedStrategy {
 public:
  void validate(const StrategyConfig& config, Diagnostics& diagnostics) const override {
    tell_idle(config.own(), diagnostics);
    ShardedStrategy::validate(config, diagnostics);
    const OfFsdp own = kFullyShardedOptions.read(config.own());
    // [distributed.fsdp2] decides where it says something, and tell_idle() has told of it then.
    if (own.enable_fsdp2_prefetch && !own.reshard_after_forward &&
        !config.moe_reshard_after_forward())
      diagnostics.notice(
          "distributed.fsdp2.enable_fsdp2_prefetch has no effect under moe_ep with "
          "distributed.moe.reshard_after_forward = false: what "
          "stays gathered need not be fetched",
          {"distributed.fsdp2.enable_fsdp2_prefetch", "distributed.fsdp2.reshard_after_forward",
           "distributed.moe.reshard_after_forward"});
    if (config.sequence_parallel() && config.sizes().tp > 1)
      diagnostics.add(
          option_error(config.distributed(), "sequence_parallel", ErrorCode::option_refused,
                       "moe_ep has no sequence parallelism: routers need whole tokens", "false"));
  }

  ShardingPlan plan_sharding(const ShardingRequest& request) const override {
    if (request.outline.tied_embeddings && !request.config.moe_wrap_outer_model() &&
        request.mesh.moe_mesh)
      throw Error(ErrorCode::conflict,
                  "wrap_outer_model = false leaves the head outside of the root unit, but it "
                  "shares its weight with the embedding inside")
          .key("distributed.moe.wrap_outer_model")
          .help("set distributed.moe.wrap_outer_model = true");
    return ShardedStrategy::plan_sharding(request);
  }

 protected:
  // The moe block's rule stands unless [distributed.fsdp2] says otherwise.
  ShardingPolicy sharding_policy(const StrategyConfig& config) const override {
    return fully_sharded_policy(config, config.moe_reshard_after_forward());
  }
};

constexpr std::array kStrategies = {
    describe<MoeEp>(
        {.name = "moe_ep",
         .summary = "Expert parallelism for mixture-of-experts models, the rest fully sharded",
         .options_table = "fsdp2",
         .options = kFullyShardedOptions.declared}),
};

}  // namespace

MESHWRIGHT_PLUGIN("moe_ep", MESHWRIGHT_VERSION, "The Meshwright authors", "Apache-2.0",
                  "Mixture-of-experts expert parallel", kStrategies)
