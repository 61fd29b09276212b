#include "float8.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <limits>

#include "attention_parts.h"
#include "linear_product.h"
#include "weight_gradients.h"

namespace meshwright::detail {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kMultiple = 16;
constexpr at::ScalarType kValues = at::kFloat8_e4m3fn, kGradients = at::kFloat8_e5m2;

double largest(at::ScalarType type) {
  return type == kValues ? double{std::numeric_limits<c10::Float8_e4m3fn>::max()}
                         : double{std::numeric_limits<c10::Float8_e5m2>::max()};
}

struct Scaled {
  Tensor values;   // [rows, columns], each row in one piece
  Tensor inverse;  // what they have to be multiplied by
};

Scaled scaled(const Tensor& x, at::ScalarType type) {
  constexpr double kLeast = 1e-12;  // of zeros alone
  const Tensor most =
      at::linalg_vector_norm(x, std::numeric_limits<double>::infinity(), {}, false, at::kFloat);
  const Tensor scale = most.clamp_min(kLeast).reciprocal_().mul_(largest(type));
  return {x.to(at::kFloat).mul(scale).to(type).contiguous(), scale.reciprocal()};
}

Scaled transposed(const Scaled& x) { return {x.values.t().contiguous(), x.inverse}; }

// a [m, k] times b [n, k] transposed. Forward may add up in fewer bits, as the formats' authors do.
// LibTorch's product on the CPU takes each element by itself; one of the same numbers in float32 is
// hundreds of times as fast.
Tensor multiplied(const Scaled& a, const Scaled& b, at::ScalarType out, bool fast) {
  if (a.values.is_cpu())
    return product(a.values.to(at::kFloat), b.values.to(at::kFloat))
        .mul_(a.inverse)
        .mul_(b.inverse)
        .to(out);
  return at::_scaled_mm(a.values, b.values.t(), a.inverse, b.inverse, {}, {}, out, fast);
}

Tensor rows_of(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// With zeros below: the sum over rows is one over a multiple of 16.
Tensor padded(const Tensor& x) {
  const int64_t more = (kMultiple - x.size(0) % kMultiple) % kMultiple;
  return more == 0 ? x : at::constant_pad_nd(x, std::array<int64_t, 4>{0, 0, 0, more});
}

struct Float8Linear : torch::autograd::Function<Float8Linear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias) {
    context->save_for_backward({x, weight});
    context->saved_data["bias"] = bias.has_value();
    keep_queue(*context);
    Tensor y = multiplied(scaled(rows_of(x), kValues), scaled(weight, kValues), x.scalar_type(),
                          /*fast=*/true);
    if (bias) y.add_(*bias);
    return with_sizes_of(x, y);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], rows = rows_of(grads[0]);
    Tensor to_x, to_weight, to_bias;
    const Scaled g = scaled(rows, kGradients);
    if (context->needs_input_grad(0))
      to_x = multiplied(g, transposed(scaled(weight, kValues)), x.scalar_type(), /*fast=*/false)
                 .view(x.sizes());
    if (context->needs_input_grad(1))
      to_weight = now_or_later(*context, weight,
                               [g = g.values, inverse = g.inverse, x = rows_of(x.detach()),
                                type = weight.scalar_type()] {
                                 return multiplied(transposed({padded(g), inverse}),
                                                   transposed(scaled(padded(x), kValues)), type,
                                                   /*fast=*/false);
                               });
    if (context->saved_data["bias"].toBool() && context->needs_input_grad(2)) to_bias = rows.sum(0);
    return {to_x, to_weight, to_bias};
  }
};

}  // namespace

bool fits_float8(const Tensor& x, const Tensor& weight) {
  return x.dim() >= 2 && x.numel() > 0 && weight.size(0) > 0 && weight.size(0) % kMultiple == 0 &&
         weight.size(1) % kMultiple == 0;
}

Tensor float8_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  return Float8Linear::apply(as_autocast(x), as_autocast(weight),
                             bias ? std::optional<Tensor>(as_autocast(*bias)) : std::nullopt);
}

}  // namespace meshwright::detail
