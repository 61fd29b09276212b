// The product of few rows with a matrix, as decoding has it: time goes into reading the weights,
// once, as they lie. Libraries pack them into panels first, or read them once a row.
//
// Bits: an element depends on its own row of x and its own row of the weight, on no other, and on
// the target. So a text's numbers do not depend on what is beside it, and a matrix that is cut by
// rows (colwise tensor parallelism) gives those of the whole.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "sdk/nn/attention_kernel.h"

namespace meshwright::detail {

// Whether few_rows_product() takes x [.., k] and weight [n, k]: a forward without gradients of a
// model that keeps keys and values (KeyValueScope), at most 16 rows, float32 or bfloat16 on the
// CPU, each row in one piece.
MESHWRIGHT_API bool takes_few_rows(const at::Tensor& x, const at::Tensor& weight);

// x [m, k] times weight [n, k] transposed, plus bias [n]: [m, n]. Sums are float32, and rounded
// once.
MESHWRIGHT_API at::Tensor few_rows_product(const at::Tensor& x, const at::Tensor& weight,
                                           const std::optional<at::Tensor>& bias,
                                           AttentionTarget target = AttentionTarget::kBest);

}  // namespace meshwright::detail
