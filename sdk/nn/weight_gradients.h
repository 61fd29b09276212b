// Hands the gradients of experts' inputs to a listener as soon as they are known, while the
// gradients of the parameters are still being computed. The listener is the dispatcher, which sends
// them back.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "meshwright/export.h"

namespace meshwright::detail {

// Gradients of the tokens and of their weights.
using InputGradients = std::function<void(const at::Tensor& tokens, const at::Tensor& weights)>;

// For the forward of GroupedExperts that runs within its life, on this thread.
class TellInputGradients {
 public:
  explicit TellInputGradients(InputGradients listener);
  ~TellInputGradients();
  TellInputGradients(const TellInputGradients&) = delete;
  TellInputGradients& operator=(const TellInputGradients&) = delete;
  // The listener of this thread; empty when there is none.
  static InputGradients take();
};

// Gradients of parameters written where their unit keeps them, by functions that can multiply into
// memory: no tensor of their own, and no copy (as Megatron-LM's fused accumulation of weight
// gradients).

// The gradient times `scale` becomes, or with `add` is added to, `into` (contiguous, of the
// parameter's shape).
struct GradientPlace {
  at::Tensor into;
  double scale = 1;
  bool add = false;
};

class GradientKeeper {
 public:
  virtual ~GradientKeeper();
  // During a backward: the caller writes all of it at once, and gives autograd nothing. nullopt:
  // autograd shall bring the gradient.
  virtual std::optional<GradientPlace> place() = 0;
};
// During a backward that adds up all gradients, the keeper of a parameter that nobody else watches;
// nullptr: there is none.
GradientKeeper* gradient_keeper(const at::Tensor& parameter);
// Whether a backward may find one.
bool has_gradient_keeper(const at::Tensor& parameter);

// Gradients of weights put off: a backward computes those of the inputs, on which other ranks wait,
// and products for weights stand in a queue until somebody runs them (zero bubble pipelines: Qi et
// al. 2023). What does not know of it brings its gradients at once.

class MESHWRIGHT_API WeightGradients {
 public:
  // `weight`: a parameter. `product` gives its gradient, once.
  void put_off(at::Tensor weight, std::function<at::Tensor()> product) {
    waiting_.emplace_back(std::move(weight), std::move(product));
  }
  // Computes what waits, in the order in which it came, as a backward would bring it.
  void run();
  bool empty() const { return waiting_.empty(); }

 private:
  std::vector<std::pair<at::Tensor, std::function<at::Tensor()>>> waiting_;
};

// Makes `queue` that of the forwards run by this thread while it lives; their backwards fill it.
class MESHWRIGHT_API WeightGradientScope {
 public:
  explicit WeightGradientScope(std::shared_ptr<WeightGradients> queue);
  ~WeightGradientScope();
  WeightGradientScope(const WeightGradientScope&) = delete;
  WeightGradientScope& operator=(const WeightGradientScope&) = delete;

 private:
  std::shared_ptr<WeightGradients> outer_;
};
// nullptr: nothing is put off.
MESHWRIGHT_API std::shared_ptr<WeightGradients> current_weight_gradients();

// The queue of a forward, on its way to the backward, in AutogradContext::saved_data.
struct QueueHolder : torch::CustomClassHolder {
  explicit QueueHolder(std::shared_ptr<WeightGradients> q) : queue(std::move(q)) {}
  std::shared_ptr<WeightGradients> queue;
};
// Keeps the forward's queue, if there is one; and what was kept, nullptr: none.
void keep_queue(torch::autograd::AutogradContext& context);
std::shared_ptr<WeightGradients> kept_queue(torch::autograd::AutogradContext& context);
// What `product` gives; undefined where it now stands in the forward's queue.
at::Tensor now_or_later(torch::autograd::AutogradContext& context, const at::Tensor& weight,
                        std::function<at::Tensor()> product);

// The gradient g^T x of a weight [out, in], from g [rows, out] and x [.., in]; undefined where it
// stands in the forward's queue, or went where the weight's unit keeps it (weight_gradients.h).
at::Tensor gradient_of_weight(torch::autograd::AutogradContext& context, const at::Tensor& weight,
                              const at::Tensor& g, const at::Tensor& x);
// The same of several weights that read one x, by one product: g has the columns of all of them
// beside each other. Undefined also for those that want no gradient.
torch::autograd::variable_list gradients_of_weights(torch::autograd::AutogradContext& context,
                                                    const std::vector<at::Tensor>& weights,
                                                    const std::vector<bool>& wanted,
                                                    const at::Tensor& g, const at::Tensor& x);

}  // namespace meshwright::detail
