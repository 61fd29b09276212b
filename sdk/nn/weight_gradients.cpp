#include "weight_gradients.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "linear_product.h"

namespace meshwright::detail {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

thread_local std::shared_ptr<WeightGradients> queue_of_thread;

// g^T x, made for the first weight that asks for its rows.
struct StackedGradient {
  Tensor g, x, made;
  Tensor rows(int64_t begin, int64_t count, at::ScalarType type) {
    if (!made.defined()) {
      made = product(g.t(), x.t());
      g = x = Tensor();
    }
    return made.narrow(0, begin, count).to(type);
  }
  // Whether they went where the weight's unit keeps its gradient: unrounded, where that is wider.
  bool place(int64_t begin, const Tensor& weight) {
    GradientKeeper* keeper = c10::GradMode::is_enabled() ? nullptr : gradient_keeper(weight);
    const std::optional<GradientPlace> kept = keeper != nullptr ? keeper->place() : std::nullopt;
    if (!kept) return false;
    if (!made.defined()) {
      made = at::empty({g.size(1), x.size(1)}, kept->into.options());
      product_into(made, g.t(), x);
      g = x = Tensor();
    }
    Tensor into = kept->into;
    const Tensor mine = made.narrow(0, begin, weight.size(0));
    if (kept->add)
      into.add_(mine, kept->scale);
    else
      into.copy_(mine);
    if (!kept->add && kept->scale != 1) into.mul_(kept->scale);
    return true;
  }
};

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

Tensor gradient_of_weight(AutogradContext& context, const Tensor& weight, const Tensor& g,
                          const Tensor& x) {
  const Tensor rows = x.reshape({-1, x.size(-1)});
  if (kept_queue(context) == nullptr) {
    if (g.is_cuda() && place_product(weight, g.t(), rows)) return {};
    return product(g.t(), rows.t());
  }
  // Without their history, which would keep the graph alive.
  return now_or_later(context, weight,
                      [g = g.detach(), rows = rows.detach()] { return product(g.t(), rows.t()); });
}

variable_list gradients_of_weights(AutogradContext& context, const std::vector<Tensor>& weights,
                                   const std::vector<bool>& wanted, const Tensor& g,
                                   const Tensor& x) {
  variable_list out(weights.size());
  if (weights.size() == 1) {
    if (wanted[0]) out[0] = gradient_of_weight(context, weights[0], g, x);
    return out;
  }
  const bool later = kept_queue(context) != nullptr;
  auto all = std::make_shared<StackedGradient>();
  all->g = later ? g.detach() : g;
  all->x = x.reshape({-1, x.size(-1)});
  if (later) all->x = all->x.detach();
  int64_t begin = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const Tensor& weight = weights[i];
    if (wanted[i] && (later || !g.is_cuda() || !all->place(begin, weight)))
      out[i] = now_or_later(context, weight,
                            [all, begin, count = weight.size(0), type = weight.scalar_type()] {
                              return all->rows(begin, count, type);
                            });
    begin += weight.size(0);
  }
  return out;
}

}  // namespace meshwright::detail
