// How ddp runs.
#include <algorithm>
#include <numeric>

#include "layers.h"
#include "meshwright/parallel/fully_sharded.h"
#include "meshwright/parallel/replicated_model.h"
#include "meshwright/plugin_runtime.h"

namespace {

using namespace meshwright;

std::unique_ptr<ParallelModel> run(Strategy&, ParallelizeRequest& request) {
  const Options& own = request.config.own;
  check_backend(request);
  apply_activation_checkpointing(request, kWholeLayers);
  ReplicationPolicy policy;
  std::vector<int64_t> ranks(static_cast<size_t>(request.world->size()));
  std::iota(ranks.begin(), ranks.end(), int64_t{0});
  policy.group = request.world->group(policy.axis, ranks);
  policy.mp = request.config.shared.mp;
  policy.bucket_bytes = static_cast<int64_t>(own.get_number("bucket_cap_mb") * 1024 * 1024);
  policy.first_bucket_bytes = std::min(policy.first_bucket_bytes, policy.bucket_bytes);
  policy.gradient_as_bucket_view = own.get_bool("gradient_as_bucket_view");
  policy.broadcast_buffers = own.get_bool("broadcast_buffers");
  policy.find_unused_parameters = own.get_bool("find_unused_parameters");
  policy.static_graph = own.get_bool("static_graph");
  policy.options = own.schema().table;
  return replicate_model(request.model, policy, request.world);
}

}  // namespace

MESHWRIGHT_PLUGIN_RUNS_WITH(run)
