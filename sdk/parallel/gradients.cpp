#include "meshwright/parallel/gradients.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "gradients.h"
#include "meshwright/parallel/parallel.h"
#include "meshwright/parallel/scalar_type.h"
#include "sdk/nn/buffers.h"

namespace meshwright {

namespace {

using at::Tensor;

// The sum of their squares, [1] in float64 on `device`. The host waits for nothing.
Tensor squares_of(const std::vector<Tensor>& gradients, at::Device device) {
  double on_host = 0;
  std::map<at::ScalarType, std::vector<Tensor>> on_device;
  for (const Tensor& g : gradients)
    if (g.is_cpu())
      on_host += detail::sum_of_squares(g);
    else if (g.numel() > 0)
      on_device[g.scalar_type()].push_back(g);
  Tensor out = at::full({1}, on_host, at::TensorOptions().dtype(at::kDouble).device(device));
  for (const auto& [type, tensors] : on_device)  // without a copy in float64
    out.add_(at::stack(at::_foreach_norm(tensors, 2, at::kDouble)).square_().sum());
  return out;
}

// Whether an optimizer's kernels may multiply with it: they divide by a float32 on their device,
// and write the gradients back. In float16 they must: small ones would become zero here.
bool may_wait(const std::vector<GradientSet>& sets, double factor) {
  if (!(factor > 1e-30 && factor < 1e30)) return false;
  bool half = false, on_device = true;
  for (const GradientSet& set : sets)
    for (const Tensor& g : set.gradients) {
      if (g.scalar_type() == at::kDouble) return false;
      half = half || g.scalar_type() == at::kHalf;
      on_device = on_device && !g.is_cpu();
    }
  return half || on_device;
}

}  // namespace

double detail::clip_or_leave(const std::vector<GradientSet>& sets, double max_norm, double scale,
                             at::Device device, const std::shared_ptr<Group>& pipeline,
                             double* left) {
  c10::NoGradGuard no_grad;
  Tensor squares = squares_of({}, device);
  for (const GradientSet& set : sets) {
    if (!set.counted) continue;
    Tensor sum = squares_of(set.gradients, device);
    for (const auto& group : set.groups)
      group->all_reduce(sum, ReduceOp::sum, /*control=*/true).wait();
    squares.add_(sum);
  }
  if (pipeline) pipeline->all_reduce(squares, ReduceOp::sum, /*control=*/true).wait();
  double norm = std::sqrt(squares.item<double>()) * std::abs(scale);
  double factor = scale;
  if (max_norm > 0 && std::isfinite(norm)) factor *= std::min(1.0, max_norm / (norm + 1e-6));
  if (left != nullptr) *left = 1;
  if (left != nullptr && factor != 1 && may_wait(sets, factor))
    *left = factor;
  else if (factor != 1)
    for (const GradientSet& set : sets)
      if (!set.gradients.empty()) at::_foreach_mul_(set.gradients, factor);
  return norm;
}

double clip_gradients(const std::vector<GradientSet>& sets, double max_norm, double scale,
                      at::Device device, const std::shared_ptr<Group>& pipeline) {
  return detail::clip_or_leave(sets, max_norm, scale, device, pipeline, nullptr);
}

// Where parameters lie among the flat tensors that an optimizer updates.

std::vector<UpdatePlace> update_places(const ParallelModel& model) {
  std::vector<UpdatePlace> out;
  const std::vector<FlatParameterGroup>& groups = model.update_groups();
  for (const ParallelParameter& p : model.parameters()) {
    UpdatePlace place;
    for (size_t g = 0; g < groups.size() && place.group == SIZE_MAX && p.local.numel() > 0; ++g) {
      const Tensor& values = groups[g].values;
      int64_t begin = p.local.storage_offset() - values.storage_offset();
      if (values.scalar_type() == p.local.scalar_type() &&
          values.storage().is_alias_of(p.local.storage()) && begin >= 0 &&
          begin + p.local.numel() <= values.numel())
        place = {g, begin};
    }
    out.push_back(place);
  }
  return out;
}

std::vector<StateTensor> state_beside(const ParallelModel& model, const std::string& state,
                                      const std::vector<Tensor>& flat,
                                      std::optional<StateReplica> replica) {
  std::vector<StateTensor> out;
  const std::vector<UpdatePlace> places = update_places(model);
  for (size_t i = 0; i < places.size(); ++i) {
    const ParallelParameter& p = model.parameters()[i];
    if (p.local.numel() > 0 && places[i].group == SIZE_MAX) continue;  // frozen
    StateTensor tensor{state, p.name, p.global_shape, p.region, {}, replica};
    if (!flat.empty()) tensor.dtype = dtype_of(flat.front().scalar_type());
    if (places[i].group != SIZE_MAX)
      tensor.local =
          flat[places[i].group].narrow(0, places[i].begin, p.local.numel()).view(p.local.sizes());
    out.push_back(std::move(tensor));
  }
  return out;
}

}  // namespace meshwright
