// What experts do between their two products, forward and backward, without autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include "meshwright/nn/moe.h"

namespace meshwright::detail {

// An activation with its numbers.
struct ActivationShape {
  ExpertActivation kind = ExpertActivation::swiglu;
  double alpha = 1.702, limit = 7, swiglu_limit = 0;
  bool gated() const { return kind != ExpertActivation::relu2; }
};

ActivationShape activation_shape(const MoeConfig& config);

// Whether these two put their results where the caller says, for tensors like t.
bool activates_into(const ActivationShape& shape, const at::Tensor& t);

// h [N, 2f] (relu2: [N, f]) to [N, f], times weights [N] where they are defined; computed in
// float32 (float64 of float64). `into`: where it may be put.
at::Tensor activate(const ActivationShape& shape, const at::Tensor& h, const at::Tensor& weights,
                    const at::Tensor& into = {});

struct ActivationGradients {
  at::Tensor to_h, to_weights;  // as h; [N] in the dtype of weights
  at::Tensor weighted;          // activate(shape, h, weights)
};
// grad [N, f]: of the weighted activation. `into`: where they may be put, defined or not.
ActivationGradients activate_backward(const ActivationShape& shape, const at::Tensor& h,
                                      const at::Tensor& weights, const at::Tensor& grad,
                                      ActivationGradients into = {});

}  // namespace meshwright::detail
