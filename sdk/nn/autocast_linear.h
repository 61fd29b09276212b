// Linear under autocast on a device, with the numbers of LibTorch's: fewer casts.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace meshwright::detail {

// x in `dtype`. Modules beside each other that read the same x share one cast, and its gradient is
// the float32 sum of theirs, in one pass.
at::Tensor shared_cast(const at::Tensor& x, at::ScalarType dtype);

// Whether autocast_linear() takes them: on a device under autocast, the weight in float32.
bool autocasts(const at::Tensor& x, const at::Tensor& weight);
// x weight^T + bias in the dtype of autocast. The weight's gradient goes where its unit keeps it
// (gradient_place.h).
at::Tensor autocast_linear(const at::Tensor& x, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias);

}  // namespace meshwright::detail
