#include "meshwright/parallel/expert_parallel.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <map>
#include <utility>

#include "meshwright/error.h"
#include "meshwright/nn/moe.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/comm/parts.h"
#include "sdk/nn/moe_parts.h"

namespace meshwright {

using at::Tensor;

struct ExpertParallel::Parts {
  std::shared_ptr<Group> ep, ep_shard;
  // Of gradients that are summed over ep_shard (semantics 10.5): the number of ranks with different
  // samples times the ranks of tp, which have the same samples.
  double divisor = 1;
  std::map<std::string, std::vector<int64_t>, std::less<>> whole = {};  // sizes with all experts
};

ExpertParallel::ExpertParallel(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
ExpertParallel::~ExpertParallel() = default;
const std::shared_ptr<Group>& ExpertParallel::ep() const { return parts_->ep; }
const std::shared_ptr<Group>& ExpertParallel::ep_shard() const { return parts_->ep_shard; }
bool ExpertParallel::holds(std::string_view parameter) const {
  return parts_->whole.contains(parameter);
}

UnitSharding ExpertParallel::sharding() const {
  return {parts_->ep_shard, "ep_shard", /*dim=*/1, parts_->divisor};
}

void ExpertParallel::describe(ParallelParameter& parameter) const {
  auto found = parts_->whole.find(parameter.name);
  if (found == parts_->whole.end()) return;
  int64_t all = found->second[0], here = all / parts_->ep->size();
  Region part = Region::whole(parameter.global_shape);
  part.offsets[0] = parts_->ep->rank() * here;
  parameter.region = within(part, parameter.region);
  parameter.global_shape[0] = all;
  if (parts_->ep->size() > 1) parameter.placement.emplace_back("ep", "shard(0)");
}

Tensor ExpertParallel::whole(std::string_view parameter, const Tensor& local) const {
  if (!holds(parameter) || parts_->ep->size() == 1) return local;
  c10::NoGradGuard no_grad;
  return detail::PartsGather(detail::where_sent(local, *parts_->ep), 0, *parts_->ep)
      .whole()
      .to(local.device());
}

std::shared_ptr<ExpertParallel> apply_expert_parallel(const ParallelizeRequest& request) {
  if (!request.mesh.moe_mesh) return nullptr;
  auto refuse = [](std::string why) {
    return Error(ErrorCode::model_does_not_fit, std::move(why)).key("distributed.ep_size");
  };
  auto blocks = find_moe_blocks(*request.model);
  // A pipeline's stages may all be dense while others of the model are not.
  if (blocks.empty() && request.outline.stages <= 1)
    throw refuse("the model " + request.outline.architecture + " has no mixture-of-experts blocks")
        .help("set distributed.ep_size = 1");
  DeviceMesh meshes(*request.mesh.moe_mesh, request.world);
  const Mesh& data = *request.mesh.device_mesh;
  // Each sample's tokens come from every rank of tp, and gradients are means over the ranks with
  // different data.
  auto divisor = static_cast<double>(data.size("dp") * data.size("cp") * data.size("tp"));
  auto made = std::make_unique<ExpertParallel::Parts>(meshes.group("ep"), meshes.group("ep_shard"),
                                                      divisor);
  c10::NoGradGuard no_grad;
  for (auto& [name, block] : blocks) {
    for (auto& item : block->experts()->named_parameters(/*recurse=*/true)) {
      Tensor& parameter = item.value();
      std::string full = name + (name.empty() ? "" : ".") + "experts." + item.key();
      std::vector<int64_t> sizes = parameter.sizes().vec();
      if (sizes.empty() || sizes[0] % made->ep->size() != 0)
        throw refuse("the " + std::to_string(sizes.empty() ? 1 : sizes[0]) + " experts of " + full +
                     " do not divide by ep_size " + std::to_string(made->ep->size()));
      int64_t here = sizes[0] / made->ep->size();
      std::vector<int64_t> local = sizes;
      local[0] = here;
      parameter.set_data(parameter.is_meta()
                             ? at::empty(local, parameter.options())
                             : parameter.detach().narrow(0, made->ep->rank() * here, here).clone());
      made->whole.emplace(full, std::move(sizes));
    }
    block->set_dispatcher(
        detail::make_dispatcher(request.config.shared().moe.dispatcher, made->ep));
  }
  return std::make_shared<ExpertParallel>(std::move(made));
}

}  // namespace meshwright
