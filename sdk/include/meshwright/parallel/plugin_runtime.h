// For the one main file of a plugin's running half: what parallelize() and ModelFamily::make() need
// LibTorch for, in a library of its own, so that a job is planned without loading LibTorch.
// meshwright_add_plugin(... RUNTIME file...) builds it beside the planning half, whose Strategy
// does not override parallelize().
//
//   std::unique_ptr<meshwright::ParallelModel> run(meshwright::Strategy&,
//                                                  meshwright::ParallelizeRequest& request) { ... }
//   MESHWRIGHT_PLUGIN_RUNS_WITH(run)  // no semicolon
//
// Model families: MESHWRIGHT_MODELS_RUN_WITH(make), where make is
//
//   std::unique_ptr<meshwright::RunningModel> make(const meshwright::ModelFamily&,
//                                                  const meshwright::ModelRequest& request) { ... }
//
// and for both MESHWRIGHT_PLUGIN_RUNS_WITH_BOTH(run, make).
#pragma once

#include <cstddef>
#include <memory>

#include "meshwright/model/model_family.h"
#include "meshwright/model/running_model.h"
#include "meshwright/parallel/parallel.h"
#include "meshwright/strategy.h"

extern "C" __attribute__((visibility("hidden"))) const char
    meshwright_plugin_facts[];  // defined by the marker file that meshwright_add_plugin() adds

namespace meshwright {

// `parallelize`: hook 3 for every strategy of the plugin; collective, throws Error only. The
// strategy is the planning half's instance. `make`: the same of ModelFamily::make. nullptr: the
// plugin has none of that sort.
struct PluginRuntime {
  size_t struct_size;
  const char* facts;  // equal to the planning half's
  std::unique_ptr<ParallelModel> (*parallelize)(Strategy& strategy, ParallelizeRequest& request);
  std::unique_ptr<RunningModel> (*make)(const ModelFamily& family, const ModelRequest& request);
};

}  // namespace meshwright

#define MESHWRIGHT_PLUGIN_RUNS_WITH(parallelize) \
  MESHWRIGHT_PLUGIN_RUNS_WITH_BOTH(parallelize, nullptr)
#define MESHWRIGHT_MODELS_RUN_WITH(make) MESHWRIGHT_PLUGIN_RUNS_WITH_BOTH(nullptr, make)
#define MESHWRIGHT_PLUGIN_RUNS_WITH_BOTH(parallelize, make) \
  extern "C" __attribute__((visibility("default"), used))   \
  const meshwright::PluginRuntime meshwright_runtime_v1 = { \
      sizeof(meshwright::PluginRuntime), meshwright_plugin_facts, parallelize, make};
