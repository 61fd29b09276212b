// The table [distributed.fsdp2], which the strategies fsdp2 and moe_ep read.
#pragma once

#include <optional>
#include <string>

#include "meshwright/sharded_strategy.h"
#include "meshwright/typed_options.h"

namespace meshwright {

struct FullyShardedOptions {
  enum class Offload : uint8_t { none, cpu };
  std::optional<bool> reshard_after_forward;
  Offload offload_policy;
  bool offload_pin_memory, defer_fsdp_grad_sync, enable_fsdp2_prefetch;
  int64_t fsdp2_backward_prefetch_depth, fsdp2_forward_prefetch_depth;
  FrozenPolicy::Place frozen_sharding;
  std::string backend;
  bool enable_compile, patch_is_packed_sequence;
};
using OfFsdp = FullyShardedOptions;
inline constexpr auto kFullyShardedOptions = typed_options<OfFsdp>(
    field(&OfFsdp::reshard_after_forward,
          with_flags(option("reshard_after_forward", MESHWRIGHT_BOOL, "\"auto\"",
                            "Free gathered parameters after forward. \"auto\": all units of a list "
                            "but its last, never the root; under a pipeline none."),
                     MESHWRIGHT_OPTIONAL)),
    field(&OfFsdp::offload_policy,
          choice_option("offload_policy", "\"none\"", "none|cpu",
                        "Where shards, their gradients and optimizer state live between uses.")),
    field(&OfFsdp::offload_pin_memory,
          bool_option("offload_pin_memory", true,
                      "With offload_policy = \"cpu\": keep the shards in pinned memory.")),
    field(&OfFsdp::defer_fsdp_grad_sync,
          bool_option("defer_fsdp_grad_sync", true,
                      "Reduce gradients in the last micro-batch only; false: in every one (less "
                      "memory, more traffic).")),
    field(&OfFsdp::enable_fsdp2_prefetch,
          bool_option("enable_fsdp2_prefetch", false,
                      "Explicit prefetch chains between the units of a list.")),
    field(&OfFsdp::fsdp2_backward_prefetch_depth,
          int_option("fsdp2_backward_prefetch_depth", "2", 0,
                     "Units gathered ahead in backward, with enable_fsdp2_prefetch.")),
    field(&OfFsdp::fsdp2_forward_prefetch_depth,
          int_option("fsdp2_forward_prefetch_depth", "1", 0,
                     "Units gathered ahead in forward, with enable_fsdp2_prefetch; 0 turns the "
                     "forward chain off.")),
    field(&OfFsdp::frozen_sharding,
          with_aliases(
              with_flags(choice_option("frozen_sharding", "\"root\"", "root|per_layer|replicate",
                                       "How fully frozen towers are sharded: with the "
                                       "root unit, layer by layer, or not at all."),
                         MESHWRIGHT_IGNORE_CASE),
              "multimodal.frozen_sharding")),
    field(&OfFsdp::backend, backend_option()),
    field(&OfFsdp::enable_compile,
          bool_option("enable_compile", false,
                      "What stands here for a compiler: layers are launched as CUDA graphs where "
                      "the job allows it, as with dist_env.cuda_graphs; where not, a notice says "
                      "why. Fused kernels are always on.")),
    field(&OfFsdp::patch_is_packed_sequence,
          with_flags(bool_option("patch_is_packed_sequence", false,
                                 "A Hugging Face probe made constant in the original."),
                     MESHWRIGHT_NO_EFFECT)));

// `fallback`: the reshard rule when reshard_after_forward is "auto"; nullopt: by position
// (ShardingPolicy).
inline ShardingPolicy fully_sharded_policy(const StrategyConfig& config,
                                           std::optional<bool> fallback = {}) {
  const Options& table = config.own();
  const OfFsdp own = kFullyShardedOptions.read(table);
  ShardingPolicy policy;
  policy.reshard_after_forward = own.reshard_after_forward ? own.reshard_after_forward : fallback;
  policy.reduction.every_micro_batch = !own.defer_fsdp_grad_sync;
  policy.prefetch.forward = own.fsdp2_forward_prefetch_depth;
  policy.prefetch.backward = own.fsdp2_backward_prefetch_depth;
  // Chains hold only while units are freed after forward.
  policy.prefetch.chains = own.enable_fsdp2_prefetch && policy.reshard_after_forward.value_or(true);
  policy.offload.cpu = own.offload_policy == OfFsdp::Offload::cpu;
  policy.offload.pin_memory = own.offload_pin_memory;
  if (kFullyShardedOptions.is_given(table, &OfFsdp::offload_pin_memory))
    policy.options.set("offload.pin_memory",
                       kFullyShardedOptions.key(table, &OfFsdp::offload_pin_memory));
  policy.frozen.place = own.frozen_sharding;
  policy.options.set("frozen.place", kFullyShardedOptions.key(table, &OfFsdp::frozen_sharding));
  return policy;
}

// Options of the table that somebody set, and that others leave without effect.
inline void tell_idle(const Options& table, Diagnostics& diagnostics) {
  const OfFsdp own = kFullyShardedOptions.read(table);
  // `on`: the other option that takes the effect away.
  auto tell = [&](auto member, auto on, const std::string& value, const std::string& why = {}) {
    const std::string name = kFullyShardedOptions.name(member);
    const std::string key = kFullyShardedOptions.key(table, member),
                      other = kFullyShardedOptions.key(table, on);
    if (table.is_given(name) && table.value(name) != default_of(*table.schema().find(name)))
      diagnostics.notice(key + " has no effect with " + other + " = " + value + why, {key, other});
  };
  if (!own.enable_fsdp2_prefetch)
    for (const auto depth :
         {&OfFsdp::fsdp2_backward_prefetch_depth, &OfFsdp::fsdp2_forward_prefetch_depth})
      tell(depth, &OfFsdp::enable_fsdp2_prefetch, "false");
  else if (own.reshard_after_forward == false)
    tell(&OfFsdp::enable_fsdp2_prefetch, &OfFsdp::reshard_after_forward, "false",
         ": what stays gathered need not be fetched");
  if (own.offload_policy == OfFsdp::Offload::none)
    tell(&OfFsdp::offload_pin_memory, &OfFsdp::offload_policy, "\"none\"");
}

}  // namespace meshwright
