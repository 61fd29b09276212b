// The half of ring_zero that runs a model, loaded when one is first parallelized.
#include <meshwright/parallel/parallelize.h>
#include <meshwright/parallel/plugin_runtime.h>

#include "buckets.h"
#include "ring_model.h"

namespace {

using namespace meshwright;

std::unique_ptr<ParallelModel> run(Strategy&, ParallelizeRequest& request) {
  reject_unsupported_sizes(request);  // tensor parallelism is planned only
  const StrategyConfig& config = request.config;
  apply_activation_checkpointing(request, /*whole_layers=*/true);
  DeviceMesh groups(*request.mesh.device_mesh, request.world);
  ring_zero::RingPolicy policy;
  policy.ring = groups.group("dp_shard");
  policy.copies = groups.group("dp_replicate");
  policy.mp = config.mp_policy();
  policy.bucket_elements = ring_zero::bucket_elements(config);
  policy.reduce_every_micro_batch = ring_zero::kOptions.read(config.own()).reduce_every_micro_batch;
  return ring_zero::make_ring_model(request.model, policy, request.world);
}

}  // namespace

MESHWRIGHT_PLUGIN_RUNS_WITH(run)
