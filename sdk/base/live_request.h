#pragma once

#include "meshwright/parallel/parallel.h"

namespace meshwright {

// The request that a strategy's plan_sharding() answers for this rank: the outline with what the
// live parameters say of their dtype and of requires_grad. Local.
class MESHWRIGHT_API LiveShardingRequest {
 public:
  explicit LiveShardingRequest(const ParallelizeRequest& request);
  operator ShardingRequest() const&;  // refers to this object, so a temporary gives none
  operator ShardingRequest() const&& = delete;

 private:
  const ParallelizeRequest& request_;
  ModelOutline outline_;
};

}  // namespace meshwright
