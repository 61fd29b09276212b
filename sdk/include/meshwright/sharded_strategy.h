// What the fully sharded strategies share beyond the SDK's planners: their options and the rules between them.
#pragma once

#include <array>
#include <optional>

#include "meshwright/strategy.h"

namespace meshwright {

// The table [distributed.fsdp2], which moe_ep reads too.
inline constexpr std::array kFullyShardedOptions = {
    with_flags(
        option(
            "reshard_after_forward", MESHWRIGHT_BOOL, "\"auto\"",
            "Free gathered parameters after forward. \"auto\": all units of a list but its last, never the root; under a pipeline none."),
        MESHWRIGHT_OPTIONAL),
    choice_option("offload_policy", "\"none\"", "none|cpu", "Where shards, their gradients and optimizer state live between uses."),
    bool_option("offload_pin_memory", true, "With offload_policy = \"cpu\": keep the shards in pinned memory."),
    bool_option("defer_fsdp_grad_sync", true,
                "Reduce gradients in the last micro-batch only; false: in every one (less memory, more traffic)."),
    bool_option("enable_fsdp2_prefetch", false, "Explicit prefetch chains between the units of a list."),
    int_option("fsdp2_backward_prefetch_depth", "2", 0, "Units gathered ahead in backward, with enable_fsdp2_prefetch."),
    int_option("fsdp2_forward_prefetch_depth", "1", 0,
               "Units gathered ahead in forward, with enable_fsdp2_prefetch; 0 turns the forward chain off."),
    with_aliases(with_flags(choice_option("frozen_sharding", "\"root\"", "root|per_layer|replicate",
                                          "How fully frozen towers are sharded: with the root unit, layer by layer, or not at all."),
                            MESHWRIGHT_IGNORE_CASE),
                 "multimodal.frozen_sharding"),
    with_flags(choice_option("backend", nullptr, "nccl|gloo", "Back end of the mesh's groups. Not set: dist_env.backend."),
               MESHWRIGHT_OPTIONAL),
    with_flags(bool_option("enable_compile", false, "Per-layer compilation of the original."), MESHWRIGHT_NO_EFFECT),
    with_flags(bool_option("patch_is_packed_sequence", false, "A Hugging Face probe made constant in the original."), MESHWRIGHT_NO_EFFECT),
};

// How a configuration shards. `fallback`: the reshard rule when reshard_after_forward is "auto"; nullopt: by position (ShardingPolicy).
MESHWRIGHT_API ShardingPolicy sharding_policy(const StrategyConfig& config, std::optional<bool> fallback);

class MESHWRIGHT_API ShardedStrategy : public Strategy {
 public:
  // enable_async_tensor_parallel needs sequence_parallel.
  void validate(const StrategyConfig& config, Diagnostics& diagnostics) const override;
};

}  // namespace meshwright
