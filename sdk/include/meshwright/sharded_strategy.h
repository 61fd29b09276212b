// The base of strategies that shard parameters along rows and differ in their policy only.
//
//   class Mine final : public meshwright::ShardedStrategy {
//     ShardingPolicy sharding_policy(const StrategyConfig& config) const override { ... }
//   };
#pragma once

#include "meshwright/strategy.h"

namespace meshwright {

class MESHWRIGHT_API ShardedStrategy : public Strategy {
 public:
  // enable_async_tensor_parallel needs sequence_parallel.
  void validate(const StrategyConfig& config, Diagnostics& diagnostics) const override;
  // plan_sharded_mesh().
  MeshPlan plan_mesh(const MeshRequest& request) const override;
  // fully_sharded_plan() under sharding_policy().
  ShardingPlan plan_sharding(const ShardingRequest& request) const override;

 protected:
  // How the units are sharded and when they are gathered; pure. Default: as torch FSDP2.
  virtual ShardingPolicy sharding_policy(const StrategyConfig& config) const;
};

}  // namespace meshwright
