// The matrix product of Linear, without autograd.
#pragma once

#include <ATen/core/Tensor.h>

namespace meshwright::detail {

// a [m, k] times b [n, k] transposed, by the faster of the libraries that LibTorch carries. Both float32 on the CPU, or anything else
// that at::mm takes.
at::Tensor product(const at::Tensor& a, const at::Tensor& b);
// The same where m differs from call to call, and into `out` where k does. oneDNN makes code for each new size, which takes longer than the
// product; so it gets multiples of 32 and the rest goes to at::mm.
at::Tensor product_of_varying_rows(const at::Tensor& a, const at::Tensor& b);
void product_over_varying(at::Tensor out, const at::Tensor& a, const at::Tensor& b);
// The product into `out` [m, n].
void product_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b);

}  // namespace meshwright::detail
