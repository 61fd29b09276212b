#include "meshwright/parallel/parallelize.h"
#include "sdk/base/check_parts.h"

#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "meshwright/parallel/activation_checkpoint.h"
#include "meshwright/parallel/context_parallel.h"
#include "meshwright/parallel/expert_parallel.h"
#include "meshwright/parallel/replicated_model.h"
#include "meshwright/parallel/scalar_type.h"
#include "meshwright/parallel/tensor_parallel.h"
#include "meshwright/unit_rules.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/base/words.h"
#include "sdk/planning/checkpoint_scope.h"
#include "sdk/planning/plan_executor.h"
#include "unit.h"

namespace meshwright {

std::vector<std::string> layer_names(const ModelOutline& outline,
                                     const std::vector<std::string>& scope) {
  std::vector<std::string> out;
  for (const PlannedUnit& unit : plan_units(outline))
    if (!unit.root && checkpoint_scope::holds(scope, unit.name)) out.push_back(unit.name);
  return out;
}

std::vector<std::string> apply_activation_checkpointing(const ParallelizeRequest& request,
                                                        bool whole_layers) {
  const SharedOptions& shared = request.config.shared();
  const std::vector<std::string>& scope = shared.activation_checkpointing_scope;
  std::vector<std::string> layers = layer_names(request.outline, scope);
  // A stage without any layers says nothing about the model.
  if (layers.empty() && shared.activation_checkpointing != ActivationCheckpointing::none &&
      !layer_names(request.outline, {"all"}).empty()) {
    std::string text;
    for (const std::string& part : scope) text += (text.empty() ? "" : "+") + part;
    request.world->notice("distributed.activation_checkpointing_scope = \"" + text +
                          "\" meets no layers of " +
                          (request.outline.stages > 1 ? "this rank's stages" : "this model") +
                          ", so nothing is recomputed");
  }
  return checkpoint_layers(*request.model, layers, shared.activation_checkpointing,
                           checkpoint_scope::whole_layers(whole_layers, scope));
}

void reject_unsupported_sizes(const ParallelizeRequest& request, bool applies_tensor_parallel,
                              bool applies_expert_parallel, bool applies_context_parallel,
                              bool applies_pipeline) {
  const ParallelSizes& sizes = request.config.shared().sizes;
  for (const auto& [name, size] : {std::pair<const char*, int64_t>{"tp", sizes.tp},
                                   {"cp", sizes.cp},
                                   {"pp", sizes.pp},
                                   {"ep", sizes.ep}})
    if (size > 1 && !(applies_tensor_parallel && std::string_view(name) == "tp") &&
        !(applies_expert_parallel && std::string_view(name) == "ep") &&
        !(applies_context_parallel && std::string_view(name) == "cp") &&
        !(applies_pipeline && std::string_view(name) == "pp"))
      throw Error(ErrorCode::not_in_release,
                  std::string(name) + "_size = " + std::to_string(size) +
                      " can be planned but not yet trained: not in this release")
          .key(std::string("distributed.") + name + "_size")
          .help(std::string("set distributed.") + name + "_size = 1");
}

// On CPUs groups of several hosts sum on the way, too.
bool talks_through_nccl(World& world) {
  return !world.device().is_cpu() && world.everyone()->has_native_reduce_scatter();
}

void check_backend(const ParallelizeRequest& request) {
  const Options& own = request.config.own();
  if (own.schema().find("backend") == nullptr || !own.is_set("backend")) return;
  std::string backend = own.get_string("backend"), key = own.schema().table + ".backend";
  const bool nccl = talks_through_nccl(*request.world);
  if (request.world->size() > 1 && (backend == "nccl") != nccl)
    throw Error(ErrorCode::device_unavailable, key + " = \"" + backend +
                                                   "\", but the ranks of this job talk through " +
                                                   (nccl ? "nccl" : "gloo"))
        .key(key)
        .at(own.origin("backend"))
        .help("leave " + key + " out")
        .help("set dist_env.backend = \"" + backend + "\"");
}

ShardGroups shard_groups(const ParallelizeRequest& request) {
  const MeshPlan& plan = request.mesh;
  if (!plan.device_mesh || plan.fsdp_axes.empty())
    throw Error(ErrorCode::internal,
                "the strategy's plan has no mesh with axes to shard along (MeshPlan::fsdp_axes)");
  DeviceMesh meshes(*plan.device_mesh, request.world);
  ShardGroups out;
  out.shard_axis = plan.fsdp_axes.back();
  out.shard = meshes.group(out.shard_axis);
  if (plan.fsdp_axes.size() > 1) {
    out.replicate_axis = plan.fsdp_axes.front();
    out.replicate = meshes.group(out.replicate_axis);
  }
  // Losses are sums over all ranks with tokens of their own. With other axes beside it, theirs is
  // one of several.
  const std::string data = plan.device_mesh->size("cp") > 1 ? "dp_cp" : "dp";
  if (plan.device_mesh->has_axis(data) && plan.device_mesh->size(data) != request.world->size())
    out.data = meshes.group(data);
  if (plan.device_mesh->size("pp") > 1) out.pipeline = meshes.group("pp");
  return out;
}

LiveShardingRequest::LiveShardingRequest(const ParallelizeRequest& request)
    : request_(request), outline_(request.outline) {
  std::map<std::string, at::Tensor, std::less<>> parameters;
  for (const auto& item : request.model->named_parameters())
    parameters.emplace(item.key(), item.value());
  for (ParameterOutline& parameter : outline_.parameters) {
    auto found = parameters.find(parameter.name);
    if (found == parameters.end()) continue;  // bind_units() says so
    // Of other types the outline says something; the model that takes the parameter refuses it.
    parameter.dtype = find_dtype(found->second.scalar_type()).value_or(parameter.dtype);
    parameter.trainable = found->second.requires_grad();
  }
}

LiveShardingRequest::operator ShardingRequest() const& {
  return {outline_, request_.mesh, request_.tp, request_.config, {}, request_.world->rank()};
}

ShardingPlan plan_of(const Strategy& strategy, const ParallelizeRequest& request) {
  const LiveShardingRequest live(request);
  const ShardingRequest asked = live;
  if (request.plan != nullptr &&
      std::ranges::equal(asked.outline.parameters, request.outline.parameters,
                         [](const ParameterOutline& a, const ParameterOutline& b) {
                           return a.dtype == b.dtype && a.trainable == b.trainable;
                         }))
    return *request.plan;
  return strategy.plan_sharding(live);
}

namespace {

// Memory for the whole model, as a model has it that is built before it is sharded; each unit gives
// its part back when it is sharded.
void allocate_parameters(torch::nn::Module& model, at::Device device) {
  for (at::Tensor& p : model.parameters())
    if (p.is_meta()) {
      at::Tensor real = at::empty(p.sizes(), p.options().device(device).requires_grad(false));
      p.unsafeGetTensorImpl()->shallow_copy_from(real.getIntrusivePtr());
    }
}

// A plan over other parameters than the model's would leave some of them out. Before anything is
// cut: the outline has whole shapes.
void check_outline(torch::nn::Module& model, const ModelOutline& outline) {
  std::map<std::string_view, const ParameterOutline*> listed;
  for (const ParameterOutline& p : outline.parameters) listed.emplace(p.name, &p);
  std::map<const void*, std::string> unlisted;  // by tensor: one name of a tied one is enough
  std::set<const void*> known;
  std::vector<std::string> problems;
  for (const auto& item : model.named_parameters()) {
    const void* tensor = item.value().unsafeGetTensorImpl();
    auto found = listed.find(item.key());
    if (found == listed.end()) {
      unlisted.emplace(tensor, item.key());
      continue;
    }
    known.insert(tensor);
    if (item.value().sizes() != at::IntArrayRef(found->second->shape))
      problems.push_back(item.key() + " is " + detail::sizes_text(item.value().sizes()) +
                         ", but its outline says " + detail::sizes_text(found->second->shape));
    listed.erase(found);
  }
  for (const auto& [tensor, name] : unlisted)
    if (!known.contains(tensor)) problems.push_back("its outline does not list " + name);
  for (const auto& [name, parameter] : listed)
    problems.push_back("the model has no parameter " + parameter->name +
                       ", which its outline lists");
  if (problems.empty()) return;
  std::sort(problems.begin(), problems.end());
  throw Error(ErrorCode::bad_module,
              "the model is not that of its outline: " + text::first_few(problems, 8, "; "))
      .help(
          "make the outline from the model itself (outline_of), or give both the same names and "
          "shapes");
}

// A model that lies elsewhere than its plan says would be saved and costed wrongly.
void check_regions(const ParallelModel& model, const ShardingPlan& plan) {
  std::map<std::string_view, const ParameterPlacement*> planned;
  for (const ParameterPlacement& p : plan.parameters) planned.emplace(p.name, &p);
  for (const ParallelParameter& p : model.parameters()) {
    auto found = planned.find(p.name);
    if (found == planned.end() || p.region.count() == 0) continue;
    const std::vector<int64_t>& shape = p.global_shape;
    if (found->second->global_shape != shape ||
        as_run(found->second->region, shape) != as_run(p.region, shape))
      throw Error(ErrorCode::internal, "this rank holds " + to_text(p.region) + " of " + p.name +
                                           ", but its plan says " + to_text(found->second->region));
  }
}

// What somebody asked for and this run cannot give.
void tell_idle(const ParallelizeRequest& request, const ShardingPlan& plan) {
  for (const std::string& notice : plan.notices) request.world->notice(notice);
  if (plan.replicated) return;
  const OffloadPolicy& offload = plan.sharding.offload;
  const std::string pinned = plan.sharding.options.of("offload.pin_memory");
  if (offload.cpu && !pinned.empty() && request.world->device().is_cpu())
    request.world->notice(pinned +
                          " has no effect: the ranks compute on the CPU, and nothing is copied to "
                          "a device");
  const BufferPolicy& buffers = plan.sharding.buffers;
  const std::string registered = plan.sharding.options.of("buffers.registered");
  if (buffers.registered && !registered.empty() && !talks_through_nccl(*request.world))
    request.world->notice(registered +
                          " = true has no effect: the ranks of this job talk through gloo");
}

std::shared_ptr<Group> replicas_of(const ParallelizeRequest& request, const std::string& axis) {
  const std::optional<Mesh>& mesh = request.mesh.device_mesh;
  if (mesh && mesh->has_axis(axis)) return DeviceMesh(*mesh, request.world).group(axis);
  if (mesh) return request.world->group(axis, {request.world->rank()});  // there are no others
  std::vector<int64_t> ranks(static_cast<size_t>(request.world->size()));
  std::iota(ranks.begin(), ranks.end(), int64_t{0});
  return request.world->group(axis, ranks);
}

// The axis of all ranks that are copies of each other: those of a shard and its replicas.
std::string axis_of_copies(const Mesh& mesh, const ShardGroups& groups) {
  const int64_t ranks = groups.shard->size() * groups.replicate->size();
  for (const char* name : {"dp", "dp_cp", "dp_shard_cp", "dp_shard", "dp_replicate"})
    if (mesh.find_size(name) == ranks) return name;
  throw Error(ErrorCode::no_such_axis, "copies all-reduce their gradients over " +
                                           std::to_string(ranks) +
                                           " ranks, and no axis of the mesh holds all of them")
      .help("flatten the data-parallel axes into one: mesh.flatten(\"dp\", {...})");
}

std::unique_ptr<ParallelModel> shard_by_plan(ParallelizeRequest& request, const ShardingPlan& plan,
                                             ShardGroups groups) {
  ShardingPolicy policy = plan.sharding;
  std::vector<UnitSpec> units = bind_units(*request.model, request.outline, plan.units);
  if (groups.expert_parallel)
    for (size_t i = 0; i < units.size(); ++i)
      if (plan.units[i].experts) units[i].sharding = groups.expert_parallel->sharding();
  if (policy.independent_replicas && groups.replicate && groups.replicate->size() > 1)
    groups.independent_axis = groups.replicate_axis;
  if (policy.independent_replicas) groups.replicate = nullptr;
  const PlannedUnit whole{.name = "whole", .parameters = plan.whole};
  groups.whole = bind_units(*request.model, request.outline, {whole}).front().parameters;
  for (const ParameterOutline& p : request.outline.parameters)
    if (!p.copy_of.empty()) groups.copies.push_back(p.name);
  // Alone there is nothing to share out, which is level 0: copies, each with a shard of its own.
  const bool alone = policy.layout == ShardLayout::flat && groups.shard->size() == 1;
  if (policy.level == 0 || alone) {
    const bool replicas = groups.replicate && groups.replicate->size() > 1;
    if (policy.level == 0 && replicas) {
      groups.replicate_axis = axis_of_copies(*request.mesh.device_mesh, groups);
      groups.replicate =
          DeviceMesh(*request.mesh.device_mesh, request.world).group(groups.replicate_axis);
    } else if (!replicas) {
      groups.replicate = groups.shard;
      groups.replicate_axis = groups.shard_axis;
    }
    policy.level = 0;
    policy.reduction.every_micro_batch = false;
    groups.shard = request.world->group("alone", {request.world->rank()});
    // The plan's are for the ranks that share the update; a copy's is for one.
    for (UnitSpec& unit : units) unit.layout = nullptr;
  }
  if (policy.keeps_parameters())
    for (UnitSpec& unit : units) unit.reshard_after_forward = false;
  return shard_model(request.model, std::move(units), policy, std::move(groups), request.world);
}

// Whether copies on this rank alone do all that a plan of rows says. What they leave out makes no
// difference where nothing is gathered or reduced: when units gather ahead, reshard and reduce, in
// which order a mean is taken, and the buffers of it. The rest they lack.
bool runs_as_copies(const ParallelizeRequest& request, const ShardingPlan& plan, int64_t alone) {
  const ShardingPolicy& policy = plan.sharding;
  return policy.layout == ShardLayout::rows && request.world->size() == alone &&
         !policy.offload.cpu && !policy.precision.main_weights &&
         !policy.precision.main_gradients && !policy.checks.reduced && !policy.checks.own &&
         !find_unit_rule(request.outline.architecture) &&
         std::none_of(plan.units.begin(), plan.units.end(),
                      [](const PlannedUnit& unit) { return unit.mp.has_value(); });
}

// Each rank of cp has gradients of its own tokens alone: they must be added up.
void check_context_axes(const ParallelizeRequest& request, const ShardGroups& groups,
                        const ContextParallel& context) {
  const int64_t summed = groups.shard->size() * (groups.replicate ? groups.replicate->size() : 1),
                wanted = request.mesh.dp * context.group()->size();
  if (summed == wanted) return;
  throw Error(ErrorCode::plugin_nonconforming,
              "the strategy sums gradients over " + std::to_string(summed) + " ranks (" +
                  groups.shard_axis + "), but dp " + std::to_string(request.mesh.dp) + " x cp " +
                  std::to_string(context.group()->size()) + " ranks have tokens of their own")
      .key("distributed.cp_size")
      .help("let MeshPlan::fsdp_axes span cp, as plan_sharded_mesh() does")
      .help("set distributed.cp_size = 1");
}

}  // namespace

std::unique_ptr<ParallelModel> execute_plan(ParallelizeRequest& request, const ShardingPlan& plan) {
  // Only rows know units that lie on other axes than the rest, and that are reduced when told.
  const bool rows = !plan.replicated && plan.sharding.layout == ShardLayout::rows;
  reject_unsupported_sizes(request, /*applies_tensor_parallel=*/true,
                           /*applies_expert_parallel=*/rows, /*applies_context_parallel=*/true,
                           /*applies_pipeline=*/rows);
  check_backend(request);
  check_outline(*request.model, request.outline);
  std::shared_ptr<TensorParallel> tensor_parallel = apply_tensor_parallel(request);
  std::shared_ptr<ExpertParallel> expert_parallel = apply_expert_parallel(request);
  std::shared_ptr<ContextParallel> context_parallel = apply_context_parallel(request);
  apply_activation_checkpointing(request, plan.recompute_whole_layers);
  tell_idle(request, plan);
  if (plan.allocate_before_sharding) allocate_parameters(*request.model, request.world->device());
  std::unique_ptr<ParallelModel> model;
  const int64_t alone = tensor_parallel ? tensor_parallel->group()->size() : 1;
  if (plan.replicated) {
    model = replicate_model(request.model, plan.replication,
                            replicas_of(request, plan.replication.axis), request.world,
                            tensor_parallel, plan.buckets);
  } else if (!expert_parallel && runs_as_copies(request, plan, alone)) {
    ReplicatedPolicy whole;
    whole.mp = plan.sharding.precision.mp;
    model =
        replicate_model(request.model, whole, request.world->group("dp", {request.world->rank()}),
                        request.world, tensor_parallel);
  } else {
    ShardGroups groups = shard_groups(request);
    if (context_parallel) check_context_axes(request, groups, *context_parallel);
    groups.tensor_parallel = tensor_parallel;
    groups.expert_parallel = expert_parallel;
    model = shard_by_plan(request, plan, std::move(groups));
  }
  check_regions(*model, plan);
  model->set_context_parallel(std::move(context_parallel));
  return model;
}

namespace {

std::unique_ptr<ParallelModel> plan_and_execute(const Strategy& strategy,
                                                ParallelizeRequest& request) {
  // What no plan could run. Whether it runs expert parallelism is the plan's to say.
  reject_unsupported_sizes(request, /*applies_tensor_parallel=*/true,
                           /*applies_expert_parallel=*/true, /*applies_context_parallel=*/true,
                           /*applies_pipeline=*/true);
  check_backend(request);
  return execute_plan(request, plan_of(strategy, request));
}

[[maybe_unused]] const bool registered = (detail::set_plan_executor(&plan_and_execute), true);

}  // namespace

}  // namespace meshwright
