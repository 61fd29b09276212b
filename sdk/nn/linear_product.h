// The matrix product of Linear, without autograd.
#pragma once

#include <ATen/core/Tensor.h>

namespace meshwright::detail {

// a [m, k] times b [n, k] transposed, by the faster of the libraries that LibTorch carries. Both
// float32 on the CPU, or anything else that at::mm takes.
at::Tensor product(const at::Tensor& a, const at::Tensor& b);
// y [rows, n] with the leading sizes of x.
at::Tensor with_sizes_of(const at::Tensor& x, const at::Tensor& y);
// Whether m and k should not differ from call to call: oneDNN makes code for each new size, which
// takes longer than the product.
bool product_is_compiled(const at::Tensor& a);
// a [m, k] times b [k, n] times `scale` into `out` [m, n], contiguous, or added to it. On a device
// `out` may be float32 where the factors are of 16 bits, and then has the product unrounded.
void product_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b, double scale = 1,
                  bool add = false);
// Whether a backward's gradient a b of the weight went where its unit keeps it
// (weight_gradients.h); otherwise autograd shall bring it.
bool place_product(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b);

}  // namespace meshwright::detail
