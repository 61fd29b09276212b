#include "meshwright/sharded_strategy.h"

namespace meshwright {

void ShardedStrategy::validate(const StrategyConfig& config, Diagnostics& diagnostics) const {
  if (config.shared.enable_async_tensor_parallel && !config.shared.sequence_parallel)
    diagnostics.add(Error(ErrorCode::conflict,
                          "enable_async_tensor_parallel overlaps the collectives of sequence "
                          "parallelism, but sequence_parallel is false")
                        .key("distributed.enable_async_tensor_parallel")
                        .at(config.shared_values.origin("enable_async_tensor_parallel"))
                        .help("set distributed.sequence_parallel = true")
                        .help("set distributed.enable_async_tensor_parallel = false"));
}

}  // namespace meshwright
