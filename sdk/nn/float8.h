// Linear's products in 8-bit floats (Micikevicius et al. 2022), as torchao's tensorwise recipe has
// them: each matrix is multiplied by the number that brings its largest element to the largest of
// the format, e4m3 for inputs and weights, e5m2 for gradients; sums are wider.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace meshwright::detail {

// Whether the kernels take the sizes of x [.., k] and weight [n, k]: multiples of 16, some rows.
bool fits_float8(const at::Tensor& x, const at::Tensor& weight);
// x weight^T + bias in the dtype of x, or that of autocast.
at::Tensor float8_linear(const at::Tensor& x, const at::Tensor& weight,
                         const std::optional<at::Tensor>& bias);

}  // namespace meshwright::detail
