#include "meshwright/parallel/gradients.h"

#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>

#include "sdk/memory/buffers.h"

namespace meshwright {

double clip_gradients(const std::vector<GradientSet>& sets, double max_norm, double scale,
                      at::Device device, const std::shared_ptr<Group>& pipeline) {
  c10::NoGradGuard no_grad;
  double squares = 0;
  auto over = [&](double sum, const std::vector<std::shared_ptr<Group>>& groups) {
    if (std::all_of(groups.begin(), groups.end(), [](const auto& g) { return g->size() == 1; }))
      return sum;
    at::Tensor box = at::tensor({sum}, at::TensorOptions().dtype(at::kDouble).device(device));
    for (const auto& group : groups) group->all_reduce(box, ReduceOp::sum, /*control=*/true).wait();
    return box.item<double>();
  };
  for (const GradientSet& set : sets) {
    if (!set.counted) continue;
    double sum = 0;
    for (const at::Tensor& g : set.gradients) sum += detail::sum_of_squares(g);
    squares += over(sum, set.groups);
  }
  if (pipeline) squares = over(squares, {pipeline});
  double norm = std::sqrt(squares) * std::abs(scale);
  double factor = scale;
  if (max_norm > 0 && std::isfinite(norm)) factor *= std::min(1.0, max_norm / (norm + 1e-6));
  if (factor != 1)
    for (const GradientSet& set : sets)
      for (const at::Tensor& g : set.gradients)
        if (g.numel() > 0) g.mul_(factor);
  return norm;
}

}  // namespace meshwright
