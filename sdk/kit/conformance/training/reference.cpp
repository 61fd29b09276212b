#include "sdk/kit/conformance/training/reference.h"

#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace meshwright::conformance {

using at::Tensor;

namespace {

Tensors cloned(const Tensors& tensors) {
  Tensors out;
  for (const auto& [name, tensor] : tensors) out[name] = tensor.detach().clone();
  return out;
}

// Scales and clips (semantics 8.3); returns the norm before clipping.
double clip(Tensors& gradients, const Clipping& how) {
  double squares = 0;
  for (auto& [name, gradient] : gradients)
    squares += gradient.mul_(how.scale).to(at::kDouble).square().sum().item<double>();
  const double norm = std::sqrt(squares);
  if (how.max_norm > 0)
    for (auto& [name, gradient] : gradients)
      gradient.mul_(std::min(1.0, how.max_norm / (norm + 1e-6)));
  return norm;
}

double backward(Net& net, int64_t step, std::span<const int64_t> rows) {
  Tensor loss =
      loss_sum_of(net, samples(step, rows)) / static_cast<double>(std::ssize(rows) * kLength);
  loss.backward();
  return loss.item<double>();
}

Tensors take_gradients(Net& net) {
  Tensors out;
  for (auto& item : net->named_parameters()) {
    out[item.key()] = item.value().grad();
    item.value().mutable_grad() = Tensor();
  }
  return out;
}

}  // namespace

Reference plain_loop() {
  Reference out;
  Net net = make_net();
  TrainingState now;
  for (const auto& item : net->named_parameters()) {
    now.parameters[item.key()] = item.value().detach();
    now.momenta[item.key()] = at::zeros_like(now.parameters[item.key()]);
  }
  std::vector<int64_t> rows(kRows);
  std::iota(rows.begin(), rows.end(), 0);
  for (int64_t step = 0; step < kSteps; ++step) {
    out.states.push_back({cloned(now.parameters), cloned(now.momenta)});
    out.losses.push_back(backward(net, step, rows));
    c10::NoGradGuard no_grad;
    Tensors gradients = take_gradients(net);
    out.norms.push_back(clip(gradients, clipping_of(step)));
    for (auto& [name, gradient] : gradients) {
      now.momenta[name].mul_(kMomentum).add_(gradient);
      now.parameters[name].sub_(now.momenta[name], kRate);
    }
    out.gradients.push_back(std::move(gradients));
  }
  out.states.push_back(std::move(now));
  return out;
}

Tensors gradients_of(const Reference& reference, int64_t step, std::span<const int64_t> rows) {
  Net net = make_net();
  {
    c10::NoGradGuard no_grad;
    for (auto& item : net->named_parameters())
      item.value().copy_(reference.states[static_cast<size_t>(step)].parameters.at(item.key()));
  }
  backward(net, step, rows);
  return take_gradients(net);
}

}  // namespace meshwright::conformance
