// What the fully sharded strategies share beyond the SDK's planners.
#pragma once

#include <string>

#include "meshwright/strategy.h"

namespace meshwright {

// How a model is sharded and when its units are gathered: what plan and run share, and what only
// running needs. A strategy reads it from options of its own; the defaults are torch FSDP2's.
struct FullyShardedPolicy : ShardingPolicy {
  // Chains within a list of units: each gathers so many ahead in forward and in backward. Without
  // them one unit is gathered ahead.
  bool explicit_prefetch = false;
  int64_t forward_depth = 1, backward_depth = 2;
  bool cpu_offload = false;  // shards, gradients and optimizer state live on the CPU
  bool pin_memory = true;    // in pinned memory there
  // Lists of layers that are frozen as a whole beside a trainable rest: with the root unit, units
  // as they are, or whole on every rank.
  enum class Frozen : uint8_t { with_root, per_layer, replicated };
  Frozen frozen = Frozen::with_root;
  std::string frozen_key =
      {};  // the option that says so, for notices: "distributed.mine.frozen"; empty: none
};

class MESHWRIGHT_API ShardedStrategy : public Strategy {
 public:
  // enable_async_tensor_parallel needs sequence_parallel.
  void validate(const StrategyConfig& config, Diagnostics& diagnostics) const override;
};

}  // namespace meshwright
