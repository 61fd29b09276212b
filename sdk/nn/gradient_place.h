// Gradients of parameters written where their unit keeps them, by functions that can multiply into
// memory: no tensor of their own, and no copy (as Megatron-LM's fused accumulation of weight
// gradients).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace meshwright::detail {

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

}  // namespace meshwright::detail
