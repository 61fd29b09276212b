// What a strategy says of the parameters that it runs, before anything is read into them: what the
// engine refuses, and with it the conformance kit.
#pragma once

#include <numeric>
#include <string>
#include <string_view>
#include <vector>

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

namespace meshwright::detail {

// Throws Error(plugin_nonconforming) when a part has not the shape of its region, or is no view of
// what the optimizer updates although it is trained, and when what was planned over tp or cp was
// not done. Local.
MESHWRIGHT_API void check_parts(const ParallelModel& model, const torch::nn::Module& module,
                                const ParallelSizes& sizes, const TpPlan& tp,
                                const std::string& strategy);

// Whether a state can be called so, in checkpoints and their files.
inline bool is_state_name(std::string_view name) {
  return !name.empty() &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string_view::npos;
}

// The replicas of a checkpoint that has `then` of them whose mean this one begins with; {}: zeros.
inline std::vector<int64_t> begins_as(const StateReplica& replica, int64_t then) {
  if (then == replica.count) return {replica.index};
  if (replica.resize == StateReplica::Resize::zeros) return {};
  if (replica.resize == StateReplica::Resize::own_or_first)
    return {replica.index < then ? replica.index : 0};
  std::vector<int64_t> all(static_cast<size_t>(then));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace meshwright::detail
