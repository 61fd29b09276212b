// Hands the gradients of experts' inputs to a listener as soon as they are known, while the
// gradients of the parameters are still being computed. The listener is the dispatcher, which sends
// them back.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

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

}  // namespace meshwright::detail
