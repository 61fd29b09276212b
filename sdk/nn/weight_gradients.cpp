#include "weight_gradients.h"

#include <torch/csrc/autograd/autograd.h>

namespace meshwright::detail {

namespace {

thread_local std::shared_ptr<WeightGradients> queue_of_thread;

}  // namespace

void WeightGradients::run() {
  for (auto& [weight, product] : std::exchange(waiting_, {})) {
    const at::Tensor gradient = product();
    product = nullptr;  // lets go of what it was made from
    torch::autograd::backward({weight}, {gradient});
  }
}

WeightGradientScope::WeightGradientScope(std::shared_ptr<WeightGradients> queue)
    : outer_(std::exchange(queue_of_thread, std::move(queue))) {}
WeightGradientScope::~WeightGradientScope() { queue_of_thread = std::move(outer_); }

std::shared_ptr<WeightGradients> current_weight_gradients() { return queue_of_thread; }

}  // namespace meshwright::detail
