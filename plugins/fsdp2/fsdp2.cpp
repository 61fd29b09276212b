// fsdp2: every parameter is sharded along dimension 0, unit by unit; HSDP, tensor, context and
// pipeline parallelism compose with it.
#include <array>

#include "meshwright/plugin_main.h"
#include "plugins/fully_sharded/options.h"

namespace {

using namespace meshwright;

class Fsdp2 final : public ShardedStrategy {
 public:
  void validate(const StrategyConfig& config, Diagnostics& diagnostics) const override {
    tell_idle(config.own(), diagnostics);
    ShardedStrategy::validate(config, diagnostics);
  }

  MeshPlan plan_mesh(const MeshRequest& request) const override {
    if (request.config.sizes().ep <= 1) return plan_sharded_mesh(request);
    MeshPlan plan;
    plan.delegate_to = "moe_ep";  // expert parallelism replaces this strategy as a whole
    plan.notices.push_back("ep_size = " + std::to_string(request.config.sizes().ep) +
                           ": the strategy moe_ep takes over");
    return plan;
  }

 protected:
  ShardingPolicy sharding_policy(const StrategyConfig& config) const override {
    return fully_sharded_policy(config);
  }
};

constexpr std::array kStrategies = {
    describe<Fsdp2>(
        {.name = "fsdp2",
         .summary =
             "Fully sharded parameters, gradients and optimizer state, sharded per parameter",
         .options = kFullyShardedOptions.declared}),
};

}  // namespace

MESHWRIGHT_PLUGIN("fsdp2", MESHWRIGHT_VERSION, "The Meshwright authors", "Apache-2.0",
                  "Fully sharded data parallel", kStrategies)
