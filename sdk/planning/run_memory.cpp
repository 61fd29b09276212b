#include "sdk/base/run_memory.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "footprint_parts.h"
#include "meshwright/unit_rules.h"
#include "token_activations.h"

namespace meshwright {

namespace footprint {

bool alone_as_copies(const ShardingRequest& request, const ShardingPlan& plan) {
  const ShardingPolicy& policy = plan.sharding;
  return !plan.replicated && policy.layout == ShardLayout::rows && request.mesh.device_mesh &&
         !request.mesh.moe_mesh &&
         request.mesh.device_mesh->size() == request.mesh.device_mesh->size("tp") &&
         !policy.offload.cpu && !policy.precision.main_weights &&
         !policy.precision.main_gradients && !policy.checks.reduced && !policy.checks.own &&
         !find_unit_rule(request.outline.architecture) &&
         std::none_of(plan.units.begin(), plan.units.end(),
                      [](const PlannedUnit& unit) { return unit.mp.has_value(); });
}

namespace {

// Ranks that hold copies of each other under a replicated plan.
int64_t ranks_of_copies(const ShardingRequest& request, const ShardingPlan& plan) {
  const std::string& axis = plan.replication.axis;
  if (request.mesh.device_mesh && request.mesh.device_mesh->has_axis(axis))
    return request.mesh.device_mesh->size(axis);
  return replicated_axis(request, *layout_of(request, plan)).size;
}

}  // namespace

int64_t coming_gradients(const ShardingRequest& request, const ShardingPlan& plan,
                         MemoryFacts::Where where, int64_t gradients) {
  if (pipeline_size(request) > 1) return 0;
  const bool several = passes_of(request) > 1;
  if (plan.replicated ? ranks_of_copies(request, plan) == 1 : alone_as_copies(request, plan)) {
    // Autograd's own are all there is, where nothing is cast: the last step's go as a step begins.
    const MixedPrecision& mp = plan.replicated ? plan.replication.mp : plan.sharding.precision.mp;
    const DType storage = request.workload.storage;
    return mp.param == storage && dtype_size(mp.reduce) <= dtype_size(storage) && !several
               ? gradients
               : 0;
  }
  // On a device each unit of shards has memory for its gradient from the first reduction on.
  const ShardingPolicy& policy = plan.sharding;
  if (plan.replicated || where != MemoryFacts::Where::device || policy.offload.cpu) return 0;
  if (policy.layout == ShardLayout::flat &&
      (policy.level < 3 || layout_of(request, plan)->shard.size == 1))
    return 0;
  return several && policy.reduction.every_micro_batch ? 0 : gradients;
}

namespace {

// Whole gradients of all units, which add up beside the shards in a pipeline.
int64_t unsharded_gradients(const ShardingRequest& request, const ShardingPlan& plan) {
  if (pipeline_size(request) == 1 || plan.replicated || plan.sharding.layout != ShardLayout::rows ||
      plan.sharding.reduction.every_micro_batch || passes_of(request) <= 1)
    return 0;
  const std::shared_ptr<const Layout> kept = layout_of(request, plan);
  const Layout& layout = *kept;
  int64_t sum = 0;
  for (const PlannedUnit& unit : plan.units) {
    const MixedPrecision& mp = unit.mp ? *unit.mp : plan.sharding.precision.mp;
    sum = plus(sum,
               times(unit_layout_of(request, layout, plan, unit)->trainable_size(),
                     (unit.experts ? layout.ep_shard : layout.shard).size, dtype_size(mp.reduce)));
  }
  return sum;
}

// What goes out of a rank for a unit at once.
struct Sent {
  int64_t gathered = 0, reduced = 0;  // its part of the one, and of the other for all other ranks
};

// The root's buffers for the sockets. Room in shared memory is for the largest of the other units
// (ShardedModel::reserve()): what is larger is gathered into one buffer and copied to another, and
// what is reduced is packed into one and received in another. All of them stay.
int64_t root_sockets(const ShardingRequest& request, const ShardingPlan& plan) {
  if (plan.replicated || plan.sharding.layout != ShardLayout::rows ||
      alone_as_copies(request, plan))
    return 0;
  const std::shared_ptr<const Layout> kept = layout_of(request, plan);
  const Layout& layout = *kept;
  Sent others, root;
  int64_t ranks = 1;
  std::vector<int64_t> reduced;
  int64_t of_root = 0;
  for (const PlannedUnit& unit : plan.units) {
    const Axis& axis = unit.experts ? layout.ep_shard : layout.shard;
    if (axis.size == 1) continue;
    const MixedPrecision& mp = unit.mp ? *unit.mp : plan.sharding.precision.mp;
    const std::shared_ptr<const UnitLayout> made = unit_layout_of(request, layout, plan, unit);
    const Sent sent{times(made->shard_size(), dtype_size(mp.param)),
                    times(made->trainable_size(), axis.size - 1, dtype_size(mp.reduce))};
    const int64_t whole = times(made->trainable_size(), axis.size, dtype_size(mp.reduce));
    if (unit.root)
      of_root = plus(of_root, whole);
    else
      reduced.push_back(whole);
    if (unit.experts) continue;  // a group of their own
    if (unit.root && unit.module_list < 0) {
      ranks = axis.size;
      root = {std::max(root.gathered, sent.gathered), std::max(root.reduced, sent.reduced)};
    } else {
      others = {std::max(others.gathered, sent.gathered), std::max(others.reduced, sent.reduced)};
    }
  }
  if (others.gathered == 0) return 0;  // the root alone has room made for it
  const int64_t gather = root.gathered > others.gathered ? times(root.gathered, ranks) : 0,
                reduce = root.reduced > others.reduced ? times(root.reduced, 2) : 0;
  // As activations are at their fullest no gradient of a unit is there yet that was not there from
  // an earlier micro-batch on: what is counted for them is not beside these.
  const bool whole = !plan.sharding.reduction.every_micro_batch && passes_of(request) > 1;
  const int64_t counted = whole ? 0 : plus(of_root, sum_of_largest(std::move(reduced), 2));
  return std::max<int64_t>(plus(gather, reduce) - counted, 0);
}

}  // namespace

}  // namespace footprint

ParametersMove why_parameters_move(const ShardingRequest& request, const ShardingPlan& plan,
                                   const Footprint& cost) {
  if (footprint::alone_as_copies(request, plan)) return {};
  // A strategy with a running half of its own may show units beside a plan of copies.
  const bool copies = plan.replicated && cost.units.empty(),
             flat = !plan.replicated && plan.sharding.layout == ShardLayout::flat,
             alone = !plan.replicated && footprint::layout_of(request, plan)->shard.size == 1;
  if (copies) return {};
  if (!flat || (!plan.sharding.keeps_parameters() && !alone))
    return {
        std::string("the strategy ") + (alone ? "has its" : "gathers") +
            " parameters in units, whose memory may be another one each time",
        "choose a distributed.strategy that leaves whole parameters on every rank, or a level of "
        "this one that does"};
  const std::vector<PlannedUnit> layers = plan_units(request.outline);
  for (const PlannedUnit& unit : plan.units)
    for (const PlannedUnit& layer : layers)
      if (!layer.module.empty() && unit.module.starts_with(layer.module + "."))
        return {"the strategy's unit " + unit.name + " is a part of a layer, and comes within it",
                "let whole layers be the units: leave out the option that names others"};
  return {};
}

void count_run_memory(const ShardingRequest& request, const ShardingPlan& plan,
                      const MemoryFacts& facts, Bytes& bytes) {
  using namespace footprint;
  using Where = MemoryFacts::Where;
  if (bytes.activations <= 0 || (facts.where == Where::unknown && !facts.drops)) return;
  ActivationQuestion asked{
      .whole_layers = plan.recompute_whole_layers,
      .gradients = unsharded_gradients(request, plan),
      .coming = coming_gradients(request, plan, Where::unknown, bytes.gradients)};
  // Of both questions where the facts make no difference.
  std::unique_ptr<const TokenActivations> token;
  auto activations = [&]() -> int64_t {
    if (tokens_of(request) == 0) return 0;
    if (!token || !token->hold_for(asked.facts)) {
      auto made = std::make_unique<TokenActivations>(request, asked.whole_layers, asked.facts);
      made->add_all();
      token = std::move(made);
    }
    return bytes_of_passes(request, asked, *token);
  };
  const int64_t before = activations();
  asked.coming = coming_gradients(request, plan, facts.where, bytes.gradients);
  asked.facts = facts;
  const int64_t after = activations();
  if (before == INT64_MAX || after == INT64_MAX || bytes.activations == INT64_MAX) return;
  bytes.activations = std::max<int64_t>(bytes.activations - before + after, 1);
  if (facts.where == Where::host && pipeline_size(request) == 1)
    bytes.transient = plus(bytes.transient, root_sockets(request, plan));
}

}  // namespace meshwright
