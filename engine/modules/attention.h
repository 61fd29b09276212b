// Causal attention, grouped or not, with or without a sliding window.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace meshwright::modules {

// Masks of sliding windows for LibTorch's attention, [length, length], made once for all layers and
// steps. Not thread-safe.
class WindowMasks {
 public:
  // Added to scores: position i sees the `window` positions that end with itself. In the dtype and
  // on the device of `like`.
  at::Tensor mask(const at::Tensor& like, int64_t length, int64_t window);

 private:
  struct Kept {
    int64_t length, window;
    at::Tensor mask;
  };
  std::vector<Kept> kept_;
};

// Softmax(scale q k^T) v over the positions before and at each one; with window > 0 only over the
// last `window` of them. query: [batch, length, heads, head_dim]; key, value: [batch, length,
// kv_heads, head_dim], heads a multiple of kv_heads. Gives [batch, length, heads, head_dim].
// LibTorch's scaled_dot_product_attention, or in float32 on processors with AVX-512 a kernel of our
// own, which saves the many small matrix products that it is made of.
at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            double scale, int64_t window, double dropout, WindowMasks& masks);

}  // namespace meshwright::modules
