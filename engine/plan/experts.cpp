// What a job says about experts, against what its model has.
#include "engine/plan/before_start.h"

namespace meshwright::plan {

namespace {

// Whether [distributed.moe] reshard_after_forward changes what the strategy plans: some read it
// without expert parallelism, others never.
bool reshard_works(const JobPlan& plan, const ShardingRequest& cost, const StrategyConfig& config) {
  StrategyConfig other = config;
  other.shared.moe.reshard_after_forward = !config.shared.moe.reshard_after_forward;
  const Footprint changed = plan.strategy.strategy->footprint(
      {cost.outline, cost.mesh, cost.tp, other, cost.workload, cost.rank});
  const std::vector<UnitCost>& before = plan.footprint->units;
  if (changed.units.size() != before.size()) return true;
  for (size_t i = 0; i < before.size(); ++i)
    if (changed.units[i].reshards != before[i].reshards) return true;
  return false;
}

}  // namespace

void tell_idle_moe(const Job& job, const ShardingRequest& cost, const StrategyConfig& config,
                   JobPlan& plan) {
  if (!config.shared.moe_given) return;
  if (!plan.outline->moe) {
    plan.notices.push_back("[distributed.moe] has no effect: " + plan.outline->architecture +
                           " has no experts");
    return;
  }
  const Options& moe = job.config.table("distributed.moe");
  if (!config.shared.moe.ignore_router_for_ac &&
      config.shared.activation_checkpointing == ActivationCheckpointing::none)
    plan.notices.push_back(
        "distributed.moe.ignore_router_for_ac has no effect with "
        "distributed.activation_checkpointing = \"none\"");
  if (moe.is_given("reshard_after_forward") && config.shared.moe.reshard_after_forward &&
      !reshard_works(plan, cost, config))
    plan.notices.push_back(
        "distributed.moe.reshard_after_forward has no effect under this job's strategy and sizes");
}

}  // namespace meshwright::plan
