// Modules beside each other that read the same x: each has a result of its own here, and the
// products of their backward add up into one gradient, without a pass over memory for each sum.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/function.h>

#include <string>

namespace meshwright::detail {

struct SharedInput : torch::autograd::Node {
  at::Tensor sum;  // in a backward, what the readers so far gave; the first of them returned it
  std::string name() const override { return "MeshwrightSharedInput"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;

  // x for one more reader.
  static at::Tensor read(const at::Tensor& x);
  // The gradient g weight of x as read() gave it; undefined where it went into another reader's.
  static at::Tensor gradient(const at::Tensor& x, const at::Tensor& g, const at::Tensor& weight);
};

// The matrix product of Linear, without autograd.

// x [.., k] as [rows, k], also where k is 0: a rank without columns of a head that is cut.
inline at::Tensor rows_of(const at::Tensor& x) {
  return x.reshape({c10::multiply_integers(x.sizes().slice(0, x.sizes().size() - 1)), x.size(-1)});
}

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
