// How fsdp2 runs.
#include <optional>

#include "meshwright/fully_sharded.h"
#include "meshwright/plugin_runtime.h"

namespace {

using namespace meshwright;

std::unique_ptr<ParallelModel> run(Strategy&, ParallelizeRequest& request) { return parallelize_fully_sharded(request, std::nullopt); }

}  // namespace

MESHWRIGHT_PLUGIN_RUNS_WITH(run)
