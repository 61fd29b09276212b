// How moe_ep runs.
#include "meshwright/plugin_runtime.h"
#include "plugins/fully_sharded/run.h"

namespace {

using namespace meshwright;

std::unique_ptr<ParallelModel> run(Strategy&, ParallelizeRequest& request) {
  return run_fully_sharded(request, request.config.shared.moe.reshard_after_forward);
}

}  // namespace

MESHWRIGHT_PLUGIN_RUNS_WITH(run)
