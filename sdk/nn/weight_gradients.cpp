#include "weight_gradients.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

namespace meshwright::detail {

namespace {

thread_local std::shared_ptr<WeightGradients> queue_of_thread;

}  // namespace

void WeightGradients::run() {
  c10::NoGradGuard no_grad;
  for (auto& [weight, product] : std::exchange(waiting_, {})) {
    at::Tensor gradient = product();
    product = nullptr;  // lets go of what it was made from
    // As autograd ends a backward; a gradient that nobody else has becomes the parameter's.
    (*torch::autograd::impl::grad_accumulator(weight))({std::move(gradient)});
  }
}

WeightGradientScope::WeightGradientScope(std::shared_ptr<WeightGradients> queue)
    : outer_(std::exchange(queue_of_thread, std::move(queue))) {}
WeightGradientScope::~WeightGradientScope() { queue_of_thread = std::move(outer_); }

std::shared_ptr<WeightGradients> current_weight_gradients() { return queue_of_thread; }

void keep_queue(torch::autograd::AutogradContext& context) {
  if (auto queue = current_weight_gradients())
    context.saved_data["queue"] =
        c10::IValue::make_capsule(c10::make_intrusive<QueueHolder>(std::move(queue)));
}

std::shared_ptr<WeightGradients> kept_queue(torch::autograd::AutogradContext& context) {
  auto kept = context.saved_data.find("queue");
  if (kept == context.saved_data.end()) return nullptr;
  return c10::static_intrusive_pointer_cast<QueueHolder>(kept->second.toCapsule())->queue;
}

at::Tensor now_or_later(torch::autograd::AutogradContext& context, const at::Tensor& weight,
                        std::function<at::Tensor()> product) {
  const std::shared_ptr<WeightGradients> queue = kept_queue(context);
  if (!queue) return product();
  queue->put_off(weight, std::move(product));
  return {};
}

}  // namespace meshwright::detail
