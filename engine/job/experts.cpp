// What a job says about experts, against what its model has.
#include <algorithm>

#include "engine/job/before_start.h"

namespace meshwright::plan {

namespace {

// Whether [distributed.moe] reshard_after_forward changes what the strategy plans: some read it
// without expert parallelism, others never.
bool reshard_works(const JobPlan& plan, const ShardingRequest& cost, const StrategyConfig& config) {
  StrategyConfig other = config;
  other.shared.moe.reshard_after_forward = !config.shared.moe.reshard_after_forward;
  const ShardingRequest asked{cost.outline, cost.mesh, cost.tp, other, cost.workload, cost.rank};
  const Footprint changed = footprint_of(asked, plan.strategy.strategy->plan_sharding(asked));
  const std::vector<UnitCost>& before = plan.footprint->units;
  if (changed.units.size() != before.size()) return true;
  for (size_t i = 0; i < before.size(); ++i)
    if (changed.units[i].reshards != before[i].reshards) return true;
  return false;
}

// Whether all_gather, at which the host waits for no device, sends experts no more rows than
// all_to_all does in the mean, (ep - 1) a token beside k (ep - 1) / ep, and has memory for at most
// twice as many: for as many as may come.
bool gather_costs_little(int64_t ep, const MoeOutline& moe) {
  const int64_t active = moe.active_experts;
  return ep > 1 && ep <= active && ep * std::min(active, moe.experts / ep) <= 2 * active;
}

}  // namespace

void choose_dispatcher(const Job& job, MemoryFacts::Where where, JobPlan& plan,
                       StrategyConfig& config) {
  if (where != MemoryFacts::Where::device || job.model || !plan.mesh.moe_mesh ||
      !plan.outline->moe ||
      job.config.table("distributed.moe").get_string("dispatcher") != "auto" ||
      !gather_costs_little(plan.mesh.moe_mesh->size("ep"), *plan.outline->moe))
    return;
  config.shared.moe.dispatcher = plan.shared.moe.dispatcher = TokenDispatcher::all_gather;
  plan.notices.push_back(
      "tokens reach experts by all_gather, which keeps no host waiting for a device; "
      "distributed.moe.dispatcher = \"all_to_all\" needs less memory");
}

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
