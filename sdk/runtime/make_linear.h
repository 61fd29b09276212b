// Modules whose tensors are made as asked and hold nothing yet: LibTorch's own constructors fill them on the CPU.
#pragma once

#include <ATen/core/TensorBody.h>

#include "meshwright/layers.h"

namespace meshwright::detail {

// The same Parameter with other sizes, dtype and device; modules and optimizers that hold it see the change.
MESHWRIGHT_API void become(const at::Tensor& parameter, at::IntArrayRef sizes, const at::TensorOptions& options);
MESHWRIGHT_API Linear make_linear(int64_t in, int64_t out, bool bias, const at::TensorOptions& options);

}  // namespace meshwright::detail
