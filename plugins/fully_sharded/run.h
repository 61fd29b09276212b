// How the strategies that read [distributed.fsdp2] run.
#pragma once

#include <memory>
#include <optional>

#include "meshwright/parallel/fully_sharded.h"
#include "options.h"

namespace meshwright {

inline std::unique_ptr<ParallelModel> run_fully_sharded(ParallelizeRequest& request,
                                                        std::optional<bool> fallback) {
  const Options& own = request.config.own;
  FullyShardedPolicy policy = fully_sharded_policy(request.config, fallback);
  if (policy.cpu_offload && own.is_given("offload_pin_memory") && request.world->device().is_cpu())
    request.world->notice(own.schema().table +
                          ".offload_pin_memory has no effect: the ranks compute on the CPU, and "
                          "nothing is copied to a device");
  return parallelize_fully_sharded(request, policy);
}

}  // namespace meshwright
