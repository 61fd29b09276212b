// The interface a strategy plugin implements. One instance a process, made by the plugin's
// create().
//
//   class Mine final : public meshwright::Strategy {
//    public:
//     MeshPlan plan_mesh(const MeshRequest& r) const override { return plan_sharded_mesh(r); }
//     ...
//   };
//
// validate, plan_mesh, translate_tp_plan and plan_sharding are pure: no process group exists yet,
// the same arguments give the same answer on every rank, and they may be called from several
// threads. parallelize is collective. They throw meshwright::Error only.
#pragma once

#include <memory>

#include "meshwright/footprint.h"
#include "meshwright/mesh_plan.h"
#include "meshwright/outline.h"
#include "meshwright/tp_plan.h"

namespace meshwright {

class ParallelModel;        // meshwright/parallel/parallel.h
struct ParallelizeRequest;  // meshwright/parallel/parallel.h

class MESHWRIGHT_API Strategy {
 public:
  Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;
  virtual ~Strategy();

  // Rules between options that a schema cannot say, shared keys this strategy refuses included.
  // Reports all of them.
  virtual void validate(const StrategyConfig& config, Diagnostics& diagnostics) const;

  // Hook 1: sizes and world to axes, or Error with a 3xx code.
  virtual MeshPlan plan_mesh(const MeshRequest& request) const = 0;

  // Hook 2: names to styles. Default: select_tp_plan(), the same for all strategies.
  virtual TpPlan translate_tp_plan(const ModelOutline& outline, const TpPlanRequest& request) const;

  // How the model lies on the ranks, from which footprint_of() computes what it costs. Default:
  // replicated_plan().
  virtual ShardingPlan plan_sharding(const ShardingRequest& request) const;

  // Hook 3, collective: every rank of the mesh calls it with the same model and configuration.
  // Default: the plugin's running half (meshwright/parallel/plugin_runtime.h), loaded at the first
  // call; a plugin without one has plan_sharding()'s plan executed by the SDK. describe()
  // (plugin_main.h) says which strategies train.
  virtual std::unique_ptr<ParallelModel> parallelize(ParallelizeRequest& request);

  // Growth: an interface by id, or nullptr.
  virtual void* extension(uint32_t id);
};

}  // namespace meshwright
