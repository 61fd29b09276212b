#include "meshwright/parallel/expert_parallel.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <utility>

#include "meshwright/error.h"
#include "meshwright/nn/moe.h"
#include "meshwright/parallel/unit_rules.h"
#include "sdk/comm/parts.h"
#include "sdk/moe/expert_dispatchers.h"
#include "sdk/planning/expert_units.h"

namespace meshwright {

using at::Tensor;

UnitSharding ExpertParallel::sharding() const {
  return {ep_shard_, "ep_shard", /*dim=*/1, divisor_};
}

void ExpertParallel::describe(ParallelParameter& parameter) const {
  auto found = whole_.find(parameter.name);
  if (found == whole_.end()) return;
  int64_t all = found->second[0], here = all / ep_->size();
  Region& region = parameter.region;
  if (region.flat())
    region = Region::run_of_box(std::vector<int64_t>(parameter.global_shape.size(), 0),
                                parameter.global_shape, region.begin, region.end);
  parameter.global_shape[0] = all;
  region.offsets[0] += ep_->rank() * here;
  if (ep_->size() > 1) parameter.placement.emplace_back("ep", "shard(0)");
}

Tensor ExpertParallel::whole(std::string_view parameter, const Tensor& local) const {
  if (!holds(parameter) || ep_->size() == 1) return local;
  c10::NoGradGuard no_grad;
  return detail::PartsGather(local, 0, *ep_).whole();
}

std::shared_ptr<ExpertParallel> apply_expert_parallel(const ParallelizeRequest& request) {
  if (!request.mesh.moe_mesh) return nullptr;
  auto refuse = [](std::string why) {
    return Error(ErrorCode::model_does_not_fit, std::move(why)).key("distributed.ep_size");
  };
  auto blocks = find_moe_blocks(*request.model);
  if (blocks.empty())
    throw refuse("the model " + request.outline.architecture + " has no mixture-of-experts blocks")
        .help("set distributed.ep_size = 1");
  DeviceMesh meshes(*request.mesh.moe_mesh, request.world);
  const Mesh& data = *request.mesh.device_mesh;
  // Each sample's tokens come from every rank of tp, and gradients are means over the ranks with
  // different data.
  auto divisor = static_cast<double>(data.size("dp") * data.size("cp") * data.size("tp"));
  auto made =
      std::make_shared<ExpertParallel>(meshes.group("ep"), meshes.group("ep_shard"), divisor);
  c10::NoGradGuard no_grad;
  for (auto& [name, block] : blocks) {
    for (auto& item : block->experts()->named_parameters(/*recurse=*/true)) {
      Tensor& parameter = item.value();
      std::string full = name + (name.empty() ? "" : ".") + "experts." + item.key();
      std::vector<int64_t> sizes = parameter.sizes().vec();
      if (sizes.empty() || sizes[0] % made->ep_->size() != 0)
        throw refuse("the " + std::to_string(sizes.empty() ? 1 : sizes[0]) + " experts of " + full +
                     " do not divide by ep_size " + std::to_string(made->ep_->size()));
      int64_t here = sizes[0] / made->ep_->size();
      std::vector<int64_t> local = sizes;
      local[0] = here;
      parameter.set_data(
          parameter.is_meta()
              ? at::empty(local, parameter.options())
              : parameter.detach().narrow(0, made->ep_->rank() * here, here).clone());
      made->whole_.emplace(full, std::move(sizes));
    }
    block->set_dispatcher(detail::make_dispatcher(request.config.shared.moe.dispatcher, made->ep_));
  }
  return made;
}

namespace {

using Modules = std::map<std::string, std::shared_ptr<torch::nn::Module>, std::less<>>;

torch::nn::Module* inner_of(const ParallelizeRequest& request,
                            const std::vector<std::pair<std::string, Tensor>>& parameters,
                            const Modules& modules) {
  const std::string& inner = request.outline.inner_prefix;
  auto found = modules.find(inner);
  for (const auto& [name, parameter] : parameters)
    if (found == modules.end() || !name.starts_with(inner + "."))
      throw Error(ErrorCode::conflict, "wrap_outer_model = false, but " + name +
                                           " lies outside of the inner model \"" + inner + "\"")
          .key("distributed.moe.wrap_outer_model")
          .help("set distributed.moe.wrap_outer_model = true");
  return found->second.get();
}

}  // namespace

std::vector<UnitSpec> expert_unit_specs(const ParallelizeRequest& request,
                                        const ExpertParallel& experts, bool reshard_after_forward) {
  const ModelOutline& outline = request.outline;
  Modules modules;
  for (const auto& item : request.model->named_modules()) modules.emplace(item.key(), item.value());
  bool fp32_head =
      !outline.tied_embeddings && request.config.shared.moe.lm_head_precision == DType::float32;
  if (outline.tied_embeddings && request.config.shared.moe.lm_head_precision == DType::float32)
    request.world->notice(
        "distributed.moe.lm_head_precision has no effect: the head shares its weight with the "
        "embedding");
  const MixedPrecision mp = request.config.shared.moe.mp_policy.value_or(request.config.shared.mp);
  MixedPrecision head_policy = mp;
  head_policy.output = DType::float32;
  std::vector<UnitSpec> out;
  // A rule of the model's class cuts units first; experts, embedding and head are then taken out of
  // them.
  const ExpertUnits expert_units(outline);
  const UnitRule rule = find_unit_rule(outline.architecture);
  for (UnitSpec& unit : rule ? rule({*request.model, outline, reshard_after_forward, mp})
                             : unit_specs(*request.model, outline, reshard_after_forward)) {
    const bool root = unit.module == request.model.get();
    const std::optional<MixedPrecision> own = unit.mp;  // of the rule
    if (root && fp32_head) unit.mp = head_policy;  // or the model's output would be narrowed again
    std::vector<std::string_view> names;
    for (const auto& [name, parameter] : unit.parameters) names.push_back(name);
    SplitUnit split = expert_units.split(names, unit.module_list < 0,
                                         [&](size_t place) { return experts.holds(names[place]); });
    for (UnitApart& apart : split.apart) {
      UnitSpec& spec = out.emplace_back();
      spec.module = modules.at(apart.module).get();
      spec.name = std::move(apart.module);
      spec.reshard_after_forward = reshard_after_forward;
      spec.module_list = unit.module_list;
      spec.mp = own;
      if (apart.role == UnitApart::Role::experts) spec.sharding = experts.sharding();
      if (apart.role == UnitApart::Role::head && fp32_head) {
        spec.mp = head_policy;
        spec.mp->param = spec.mp->reduce = DType::float32;
      }
      for (size_t place : apart.parameters) spec.parameters.push_back(unit.parameters[place]);
    }
    std::vector<std::pair<std::string, Tensor>> rest;
    for (size_t place : split.rest) rest.push_back(std::move(unit.parameters[place]));
    unit.parameters = std::move(rest);
    // Without an outer root nothing casts the model's output, and what is left of it belongs to the
    // inner model.
    if (root && !request.config.shared.moe.wrap_outer_model)
      unit.module = inner_of(request, unit.parameters, modules);
    const bool all_apart =
        unit.parameters.empty() && !split.apart.empty() && !root;  // its module is a unit already
    if (!all_apart) out.push_back(std::move(unit));
  }
  return out;
}

}  // namespace meshwright
