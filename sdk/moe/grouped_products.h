// Products of float32 experts on a device in one launch, where LibTorch multiplies expert by expert
// and asks the host for their sizes.
#pragma once

#include <ATen/core/Tensor.h>

#include "sdk/nn/gradient_place.h"

namespace meshwright::detail {

// Whether tokens [N, d] of experts with weights like these [E, ., .] are multiplied so: where one
// expert's product takes about as long as a launch and the host's wait do. Larger ones are left to
// cuBLAS, and so are all where float32 products may be rounded.
bool has_grouped_products(const at::Tensor& tokens, const at::Tensor& first,
                          const at::Tensor& second);
// out [N, m] = a [N, k] times weights [E, k, m] of each row's expert, as they lie or transposed;
// bounds [E + 1] int32 on the device. Rows behind the last bound are left as they are.
void grouped_rows_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& weights,
                       const at::Tensor& bounds);
// a^T b of each expert's rows to out.into [E, k, m]; zeros for one of none.
void grouped_sums_into(const GradientPlace& out, const at::Tensor& a, const at::Tensor& b,
                       const at::Tensor& bounds);

}  // namespace meshwright::detail
