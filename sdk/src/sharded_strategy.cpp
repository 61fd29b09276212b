#include "meshwright/sharded_strategy.h"

#include <algorithm>

namespace meshwright {

ShardingPolicy sharding_policy(const StrategyConfig& config, std::optional<bool> fallback) {
  ShardingPolicy policy;
  policy.reshard_after_forward = config.own.find_bool("reshard_after_forward");
  if (!policy.reshard_after_forward) policy.reshard_after_forward = fallback;
  policy.reduce_every_micro_batch = !config.own.get_bool("defer_fsdp_grad_sync");
  // Without explicit chains one unit is gathered ahead in backward.
  policy.prefetch_depth =
      config.own.get_bool("enable_fsdp2_prefetch")
          ? std::max<int64_t>(config.own.get_int("fsdp2_backward_prefetch_depth"), config.own.get_int("fsdp2_forward_prefetch_depth"))
          : 1;
  return policy;
}

void ShardedStrategy::validate(const StrategyConfig& config, Diagnostics& diagnostics) const {
  if (config.shared.enable_async_tensor_parallel && !config.shared.sequence_parallel)
    diagnostics.add(Error(ErrorCode::conflict,
                          "enable_async_tensor_parallel overlaps the collectives of sequence parallelism, but sequence_parallel is false")
                        .key("distributed.enable_async_tensor_parallel")
                        .at(config.shared_values.origin("enable_async_tensor_parallel"))
                        .help("set distributed.sequence_parallel = true")
                        .help("set distributed.enable_async_tensor_parallel = false"));
}

}  // namespace meshwright
