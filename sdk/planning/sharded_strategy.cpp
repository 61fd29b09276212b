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

namespace {

// Options of the table that somebody set, and that others leave without effect.
void tell_idle(const Options& own, Diagnostics& diagnostics) {
  const std::string table = own.schema().table + ".";
  // A strategy of somebody's own need not have all of them.
  auto has = [&](const char* name) { return own.schema().find(name) != nullptr; };
  auto asked = [&](const char* name) { return has(name) && own.is_given(name) && own.value(name) != default_of(*own.schema().find(name)); };
  auto tell = [&](const char* name, const std::string& because) {
    if (asked(name)) diagnostics.notice(table + name + " has no effect " + because);
  };
  const bool chains = has("enable_fsdp2_prefetch") && own.get_bool("enable_fsdp2_prefetch");
  if (!chains)
    for (const char* depth : {"fsdp2_backward_prefetch_depth", "fsdp2_forward_prefetch_depth"})
      tell(depth, "with " + table + "enable_fsdp2_prefetch = false");
  else if (has("reshard_after_forward") && own.find_bool("reshard_after_forward") == false)
    tell("enable_fsdp2_prefetch", "with " + table + "reshard_after_forward = false: what stays gathered need not be fetched");
  if (has("offload_policy") && own.get_string("offload_policy") == "none")
    tell("offload_pin_memory", "with " + table + "offload_policy = \"none\"");
}

}  // namespace

void ShardedStrategy::validate(const StrategyConfig& config, Diagnostics& diagnostics) const {
  tell_idle(config.own, diagnostics);
  if (config.shared.enable_async_tensor_parallel && !config.shared.sequence_parallel)
    diagnostics.add(Error(ErrorCode::conflict,
                          "enable_async_tensor_parallel overlaps the collectives of sequence parallelism, but sequence_parallel is false")
                        .key("distributed.enable_async_tensor_parallel")
                        .at(config.shared_values.origin("enable_async_tensor_parallel"))
                        .help("set distributed.sequence_parallel = true")
                        .help("set distributed.enable_async_tensor_parallel = false"));
}

}  // namespace meshwright
