#include "meshwright/sharded_strategy.h"

namespace meshwright {

void ShardedStrategy::validate(const StrategyConfig& config, Diagnostics& diagnostics) const {
  if (config.shared.enable_async_tensor_parallel && !config.shared.sequence_parallel)
    diagnostics.add(
        option_error(config.shared_values, "enable_async_tensor_parallel", ErrorCode::conflict,
                     "enable_async_tensor_parallel overlaps the collectives of sequence "
                     "parallelism, but sequence_parallel is false",
                     "false")
            .about("distributed.sequence_parallel")
            .help("set distributed.sequence_parallel = true"));
}

MeshPlan ShardedStrategy::plan_mesh(const MeshRequest& request) const {
  return plan_sharded_mesh(request);
}

ShardingPlan ShardedStrategy::plan_sharding(const ShardingRequest& request) const {
  return fully_sharded_plan(request, sharding_policy(request.config));
}

ShardingPolicy ShardedStrategy::sharding_policy(const StrategyConfig&) const { return {}; }

}  // namespace meshwright
