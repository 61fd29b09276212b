// Modules beside each other that read the same x: each has a result of its own here, and the
// products of their backward add up into one gradient, without a pass over memory for each sum.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <string>

namespace meshwright::detail {

struct SharedInput : torch::autograd::Node {
  at::Tensor sum;  // in a backward, what the readers so far gave; the first of them returned it
  std::string name() const override { return "MeshwrightSharedInput"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;

  // x for one more reader.
  static at::Tensor read(const at::Tensor& x);
  // The gradient g weight of x as read() gave it; undefined where it went into another reader's.
  static at::Tensor gradient(const at::Tensor& x, const at::Tensor& g, const at::Tensor& weight);
};

}  // namespace meshwright::detail
