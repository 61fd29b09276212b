// How fsdp2 runs.
#include <optional>

#include "meshwright/plugin_runtime.h"
#include "plugins/fully_sharded/run.h"

namespace {

using namespace meshwright;

std::unique_ptr<ParallelModel> run(Strategy&, ParallelizeRequest& request) {
  return run_fully_sharded(request, std::nullopt);
}

}  // namespace

MESHWRIGHT_PLUGIN_RUNS_WITH(run)
