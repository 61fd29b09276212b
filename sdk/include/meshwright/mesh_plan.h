// From the six sizes to meshes: the request a strategy answers, and the planners that several
// strategies share.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/mesh.h"
#include "meshwright/shared_options.h"

namespace meshwright {

struct MeshRequest {
  int64_t world_size = 1;
  std::vector<int64_t> ranks;  // explicit, ordered global ranks; empty = 0..world_size-1
  StrategyConfig config;
  std::shared_ptr<const Later> later = {};
};

struct MeshPlan {
  std::optional<Mesh> device_mesh;  // none: the world is all there is
  std::optional<Mesh> moe_mesh;  // axes (pp, ep_shard, ep); only with ep > 1. An ep group spans tp.
  std::vector<std::string> fsdp_axes;  // the axes that shard parameters: {"dp_shard"},
                                       // {"dp_replicate", "dp_shard_cp"} (replicate first)
  std::string delegate_to;  // another strategy that owns this request; the rest is then empty
  std::vector<std::string> notices;
  // Data-parallel ranks: how many distinct sample streams there are (dp; without a mesh the world).
  int64_t dp = 1;
  std::shared_ptr<const Later> later = {};
};

// The mesh of the fully sharded strategies: axes (pp, dp_replicate, dp_shard, cp, tp), flattened
// dp, dp_shard_cp and dp_cp always, the expert mesh when ep > 1. Throws Error(world_not_divisible |
// world_mismatch | dp_replicate_not_divisor | dp_replicate_too_large | ep_not_divisor |
// bad_rank_list), in that order, each naming the key and settings that work. `alone`: dp_replicate
// may be all of dp, so that nothing is sharded; a group of one rank sends nothing.
MESHWRIGHT_API MeshPlan plan_sharded_mesh(const MeshRequest& request, bool alone = false);
// The dp size those rules give for (dp, tp, cp, pp) in a world, checked against it.
MESHWRIGHT_API int64_t resolve_dp_size(const MeshRequest& request);
// Throws Error(size_not_supported) for the first of `names` ("tp", "cp", "pp", "ep",
// "dp_replicate") whose size is above 1.
MESHWRIGHT_API void refuse_sizes(const MeshRequest& request, std::string_view strategy,
                                 std::span<const std::string_view> names);

}  // namespace meshwright
