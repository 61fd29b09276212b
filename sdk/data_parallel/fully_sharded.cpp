#include "meshwright/parallel/fully_sharded.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>

#include "meshwright/parallel/activation_checkpoint.h"
#include "meshwright/parallel/expert_parallel.h"
#include "meshwright/parallel/replicated_model.h"
#include "meshwright/parallel/tensor_parallel.h"
#include "meshwright/parallel/unit_rules.h"
#include "sdk/planning/checkpoint_scope.h"

namespace meshwright {

std::vector<std::string> layer_names(const ModelOutline& outline,
                                     const std::vector<std::string>& scope) {
  std::vector<std::string> out;
  for (const Unit& unit : plan_units(outline))
    if (unit.name != "root" && checkpoint_scope::holds(scope, unit.name)) out.push_back(unit.name);
  return out;
}

std::vector<std::string> apply_activation_checkpointing(const ParallelizeRequest& request,
                                                        bool whole_layers) {
  const SharedOptions& shared = request.config.shared;
  const std::vector<std::string>& scope = shared.activation_checkpointing_scope;
  std::vector<std::string> layers = layer_names(request.outline, scope);
  if (layers.empty() && shared.activation_checkpointing != ActivationCheckpointing::none) {
    std::string text;
    for (const std::string& part : scope) text += (text.empty() ? "" : "+") + part;
    request.world->notice("distributed.activation_checkpointing_scope = \"" + text +
                          "\" meets no layers of this model, so nothing is recomputed");
  }
  return checkpoint_layers(*request.model, layers, shared.activation_checkpointing,
                           checkpoint_scope::whole_layers(whole_layers, scope));
}

void reject_unsupported_sizes(const ParallelizeRequest& request, bool applies_tensor_parallel,
                              bool applies_expert_parallel) {
  const ParallelSizes& sizes = request.config.shared.sizes;
  for (const auto& [name, size] : {std::pair<const char*, int64_t>{"tp", sizes.tp},
                                   {"cp", sizes.cp},
                                   {"pp", sizes.pp},
                                   {"ep", sizes.ep}})
    if (size > 1 && !(applies_tensor_parallel && std::string_view(name) == "tp") &&
        !(applies_expert_parallel && std::string_view(name) == "ep"))
      throw Error(ErrorCode::not_in_release,
                  std::string(name) + "_size = " + std::to_string(size) +
                      " can be planned but not yet trained: not in this release")
          .key(std::string("distributed.") + name + "_size")
          .help(std::string("set distributed.") + name + "_size = 1");
}

void check_backend(const ParallelizeRequest& request) {
  const Options& own = request.config.own;
  if (own.schema().find("backend") == nullptr || !own.is_set("backend")) return;
  std::string backend = own.get_string("backend"), key = own.schema().table + ".backend";
  bool nccl = request.world->everyone()->has_native_reduce_scatter();
  if (request.world->size() > 1 && (backend == "nccl") != nccl)
    throw Error(ErrorCode::device_unavailable, key + " = \"" + backend +
                                                   "\", but the ranks of this job talk through " +
                                                   (nccl ? "nccl" : "gloo"))
        .key(key)
        .at(own.origin("backend"))
        .help("leave " + key + " out")
        .help("set dist_env.backend = \"" + backend + "\"");
}

ShardedPolicy sharded_policy(const ParallelizeRequest& request) {
  const MeshPlan& plan = request.mesh;
  if (!plan.device_mesh || plan.fsdp_axes.empty())
    throw Error(ErrorCode::internal,
                "the strategy's plan has no mesh with axes to shard along (MeshPlan::fsdp_axes)");
  DeviceMesh groups(*plan.device_mesh, request.world);
  ShardedPolicy policy;
  policy.mp = request.config.shared.mp;
  policy.shard_axis = plan.fsdp_axes.back();
  policy.shard = groups.group(policy.shard_axis);
  if (plan.fsdp_axes.size() > 1) {
    policy.replicate_axis = plan.fsdp_axes.front();
    policy.replicate = groups.group(policy.replicate_axis);
  }
  // With other axes beside it, the data's is one of several.
  if (plan.device_mesh->has_axis("dp") && plan.device_mesh->size("dp") != request.world->size())
    policy.data = groups.group("dp");
  return policy;
}

namespace {

bool all_frozen(const UnitSpec& spec) {
  return std::none_of(spec.parameters.begin(), spec.parameters.end(),
                      [](const auto& p) { return p.second.requires_grad(); });
}

// The lists of units (towers) that are frozen as a whole beside a trainable rest.
std::set<int64_t> frozen_lists(const std::vector<UnitSpec>& units) {
  std::map<int64_t, bool> frozen;  // by list
  bool any_trainable = false;
  for (const UnitSpec& unit : units) {
    bool unit_frozen = all_frozen(unit);
    any_trainable = any_trainable || !unit_frozen;
    auto [it, added] = frozen.emplace(unit.module_list, unit_frozen);
    if (!added) it->second = it->second && unit_frozen;
  }
  std::set<int64_t> out;
  for (const auto& [list, whole] : frozen)
    if (list >= 0 && whole && any_trainable) out.insert(list);
  return out;
}

// Such lists go where frozen_sharding says (spec 4.7). Under expert parallelism the ranks that
// share the root hold different experts, so it cannot own them: experts stay units of their own,
// cut over the ranks that hold the same.
void place_frozen(std::vector<UnitSpec>& units, ShardedPolicy& policy,
                  const FullyShardedPolicy& wish, World& world) {
  using Frozen = FullyShardedPolicy::Frozen;
  const std::set<int64_t> frozen = frozen_lists(units);
  const std::string key =
      wish.frozen_key.empty() ? "the sharding of frozen layers" : wish.frozen_key;
  if (frozen.empty() && wish.frozen != Frozen::with_root)
    world.notice(key + " has no effect: no list of layers of this model is frozen as a whole");
  if (wish.frozen == Frozen::per_layer) {
    std::string names;
    for (const UnitSpec& unit : units)
      if (frozen.contains(unit.module_list)) names += (names.empty() ? "" : ", ") + unit.name;
    if (names.empty() || policy.shard->size() == 1) return;
    // Repeated by the error when a collective does not end in time.
    world.notice(key + " = \"per_layer\": the frozen units " + names +
                 " are gathered wherever they run, so every rank must run them equally often; a "
                 "rank whose samples leave them out (no image, "
                 "say) holds up the others. With " +
                 key + " = \"root\" every rank gathers them with the root unit");
    return;
  }
  UnitSpec& root = units.back();
  for (UnitSpec& unit : units) {
    bool replicates = wish.frozen == Frozen::replicated;
    if (!frozen.contains(unit.module_list) || (unit.sharding && !replicates)) continue;
    auto& target = replicates ? policy.whole : root.parameters;
    target.insert(target.end(), unit.parameters.begin(), unit.parameters.end());
    unit.parameters.clear();
  }
  std::erase_if(
      units, [](const UnitSpec& unit) { return unit.module_list >= 0 && unit.parameters.empty(); });
}

}  // namespace

std::unique_ptr<ParallelModel> parallelize_fully_sharded(ParallelizeRequest& request,
                                                         const FullyShardedPolicy& wish) {
  reject_unsupported_sizes(request, /*applies_tensor_parallel=*/true,
                           /*applies_expert_parallel=*/true);
  check_backend(request);
  const StrategyConfig& config = request.config;
  std::shared_ptr<TensorParallel> tensor_parallel = apply_tensor_parallel(request);
  std::shared_ptr<ExpertParallel> expert_parallel = apply_expert_parallel(request);
  apply_activation_checkpointing(request, /*whole_layers=*/true);
  UnitRule rule = find_unit_rule(request.outline.architecture);
  if (!expert_parallel &&
      request.world->size() == (tensor_parallel ? tensor_parallel->group()->size() : 1) &&
      !wish.cpu_offload && !rule) {
    ReplicationPolicy whole;
    whole.group = request.world->group("dp", {request.world->rank()});
    whole.tensor_parallel = tensor_parallel;
    whole.mp = config.shared.mp;
    return replicate_model(request.model, whole, request.world);
  }
  ShardedPolicy policy = sharded_policy(request);
  policy.tensor_parallel = tensor_parallel;
  policy.expert_parallel = expert_parallel;
  if (expert_parallel && config.shared.moe.mp_policy) policy.mp = *config.shared.moe.mp_policy;
  policy.reduce_every_micro_batch = wish.reduce_every_micro_batch;
  policy.explicit_prefetch = wish.explicit_prefetch;
  policy.forward_depth = wish.forward_depth;
  policy.backward_depth = wish.backward_depth;
  policy.cpu_offload = wish.cpu_offload;
  policy.pin_memory = wish.pin_memory;

  std::vector<UnitSpec> units;
  if (expert_parallel)
    units = expert_unit_specs(
        request, *expert_parallel,
        wish.reshard_after_forward.value_or(config.shared.moe.reshard_after_forward));
  else if (rule)
    units = rule({*request.model, request.outline, wish.reshard_after_forward, policy.mp});
  else
    units = unit_specs(*request.model, request.outline, wish.reshard_after_forward);
  place_frozen(units, policy, wish, *request.world);
  return shard_model(request.model, std::move(units), std::move(policy), request.world);
}

}  // namespace meshwright
