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
    tell_idle(config.own, diagnostics);
    ShardedStrategy::validate(config, diagnostics);
    const SharedOptions& shared = config.shared;
    // [distributed.fsdp2] decides where it says something, and tell_idle() has told of it then.
    if (config.own.get_bool("enable_fsdp2_prefetch") &&
        !config.own.find_bool("reshard_after_forward") && !shared.moe.reshard_after_forward)
      diagnostics.notice(
          "distributed.fsdp2.enable_fsdp2_prefetch has no effect under moe_ep with "
          "distributed.moe.reshard_after_forward = false: what "
          "stays gathered need not be fetched");
    if (shared.sequence_parallel && shared.sizes.tp > 1)
      diagnostics.add(Error(ErrorCode::option_refused,
                            "moe_ep has no sequence parallelism: routers need whole tokens")
                          .key("distributed.sequence_parallel")
                          .at(config.shared_values.origin("sequence_parallel"))
                          .help("set distributed.sequence_parallel = false"));
  }

  MeshPlan plan_mesh(const MeshRequest& request) const override {
    return plan_sharded_mesh(request);
  }

  Footprint footprint(const FootprintRequest& request) const override {
    const MoeOptions& moe = request.config.shared.moe;
    if (request.outline.tied_embeddings && !moe.wrap_outer_model && request.mesh.moe_mesh)
      throw Error(ErrorCode::conflict,
                  "wrap_outer_model = false leaves the head outside of the root unit, but it "
                  "shares its weight with the embedding inside")
          .key("distributed.moe.wrap_outer_model")
          .help("set distributed.moe.wrap_outer_model = true");
    // The moe block's rule stands unless [distributed.fsdp2] says otherwise.
    return fully_sharded_footprint(request,
                                   fully_sharded_policy(request.config, moe.reshard_after_forward));
  }
};

constexpr std::array kStrategies = {
    describe<MoeEp>(
        {.name = "moe_ep",
         .summary = "Expert parallelism for mixture-of-experts models, the rest fully sharded",
         .options_table = "fsdp2",
         .options = kFullyShardedOptions,
         .capabilities = MESHWRIGHT_CAN_PLAN | MESHWRIGHT_CAN_PARALLELIZE}),
};

}  // namespace

MESHWRIGHT_PLUGIN("moe_ep", MESHWRIGHT_VERSION, "The Meshwright authors", "Apache-2.0",
                  "Mixture-of-experts expert parallel", kStrategies)
