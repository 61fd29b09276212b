// The table [distributed.fsdp2], which the strategies fsdp2 and moe_ep read.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "meshwright/sharded_strategy.h"

namespace meshwright {

inline constexpr std::array kFullyShardedOptions = {
    with_flags(option("reshard_after_forward", MESHWRIGHT_BOOL, "\"auto\"",
                      "Free gathered parameters after forward. \"auto\": all units of a list but "
                      "its last, never the root; under a pipeline none."),
               MESHWRIGHT_OPTIONAL),
    choice_option("offload_policy", "\"none\"", "none|cpu",
                  "Where shards, their gradients and optimizer state live between uses."),
    bool_option("offload_pin_memory", true,
                "With offload_policy = \"cpu\": keep the shards in pinned memory."),
    bool_option("defer_fsdp_grad_sync", true,
                "Reduce gradients in the last micro-batch only; false: in every one (less memory, "
                "more traffic)."),
    bool_option("enable_fsdp2_prefetch", false,
                "Explicit prefetch chains between the units of a list."),
    int_option("fsdp2_backward_prefetch_depth", "2", 0,
               "Units gathered ahead in backward, with enable_fsdp2_prefetch."),
    int_option("fsdp2_forward_prefetch_depth", "1", 0,
               "Units gathered ahead in forward, with enable_fsdp2_prefetch; 0 turns the forward "
               "chain off."),
    with_aliases(with_flags(choice_option("frozen_sharding", "\"root\"", "root|per_layer|replicate",
                                          "How fully frozen towers are sharded: with the root "
                                          "unit, layer by layer, or not at all."),
                            MESHWRIGHT_IGNORE_CASE),
                 "multimodal.frozen_sharding"),
    backend_option(),
    bool_option("enable_compile", false,
                "What stands here for a compiler: layers are launched as CUDA graphs where the job "
                "allows it, as with dist_env.cuda_graphs; where not, a notice says why. Fused "
                "kernels are always on."),
    with_flags(bool_option("patch_is_packed_sequence", false,
                           "A Hugging Face probe made constant in the original."),
               MESHWRIGHT_NO_EFFECT),
};

// `fallback`: the reshard rule when reshard_after_forward is "auto"; nullopt: by position
// (ShardingPolicy).
inline ShardingPolicy fully_sharded_policy(const StrategyConfig& config,
                                           std::optional<bool> fallback = {}) {
  using Place = FrozenPolicy::Place;
  const Options& own = config.own;
  const std::string table = own.schema().table + ".";
  ShardingPolicy policy;
  policy.reshard_after_forward = own.find_bool("reshard_after_forward");
  if (!policy.reshard_after_forward) policy.reshard_after_forward = fallback;
  policy.reduction.every_micro_batch = !own.get_bool("defer_fsdp_grad_sync");
  policy.prefetch.forward = own.get_int("fsdp2_forward_prefetch_depth");
  policy.prefetch.backward = own.get_int("fsdp2_backward_prefetch_depth");
  // Chains hold only while units are freed after forward.
  policy.prefetch.chains =
      own.get_bool("enable_fsdp2_prefetch") && policy.reshard_after_forward.value_or(true);
  policy.offload.cpu = own.get_string("offload_policy") == "cpu";
  policy.offload.pin_memory = own.get_bool("offload_pin_memory");
  if (own.is_given("offload_pin_memory")) policy.offload.pin_key = table + "offload_pin_memory";
  const std::string frozen = own.get_string("frozen_sharding");
  policy.frozen.place = frozen == "root"        ? Place::with_root
                        : frozen == "per_layer" ? Place::per_layer
                                                : Place::replicated;
  policy.frozen.key = table + "frozen_sharding";
  return policy;
}

// Options of the table that somebody set, and that others leave without effect.
inline void tell_idle(const Options& own, Diagnostics& diagnostics) {
  const std::string table = own.schema().table + ".";
  // `on`: the other option that takes the effect away.
  auto tell = [&](const char* name, const char* on, const std::string& value,
                  const std::string& why = {}) {
    if (own.is_given(name) && own.value(name) != default_of(*own.schema().find(name)))
      diagnostics.notice(table + name + " has no effect with " + table + on + " = " + value + why,
                         {table + name, table + on});
  };
  if (!own.get_bool("enable_fsdp2_prefetch"))
    for (const char* depth : {"fsdp2_backward_prefetch_depth", "fsdp2_forward_prefetch_depth"})
      tell(depth, "enable_fsdp2_prefetch", "false");
  else if (own.find_bool("reshard_after_forward") == false)
    tell("enable_fsdp2_prefetch", "reshard_after_forward", "false",
         ": what stays gathered need not be fetched");
  if (own.get_string("offload_policy") == "none")
    tell("offload_pin_memory", "offload_policy", "\"none\"");
}

}  // namespace meshwright
