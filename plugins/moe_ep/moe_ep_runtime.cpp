// How moe_ep runs.
#include "meshwright/fully_sharded.h"
#include "meshwright/plugin_runtime.h"

namespace {

using namespace meshwright;

std::unique_ptr<ParallelModel> run(Strategy&, ParallelizeRequest& request) {
  return parallelize_fully_sharded(request, request.config.shared.moe.reshard_after_forward);
}

}  // namespace

MESHWRIGHT_PLUGIN_RUNS_WITH(run)
