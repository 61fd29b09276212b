// The matrix product of Linear, without autograd.
#pragma once

#include <ATen/core/Tensor.h>

namespace meshwright::detail {

// a [m, k] times b [n, k] transposed, by the faster of the libraries that LibTorch carries. Both float32 on the CPU, or anything else
// that at::mm takes.
at::Tensor product(const at::Tensor& a, const at::Tensor& b);
// What m and k should be multiples of where they differ from call to call: oneDNN makes code for each new size, which takes longer than the
// product. 1 where that does not matter.
int64_t product_multiple(const at::Tensor& a);
// The product into `out` [m, n], contiguous.
void product_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b);

}  // namespace meshwright::detail
