// Rotary position embeddings (Su et al. 2021) in transformers' layout: the two halves of a head are the two parts of each pair.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "engine/nets/net_config.h"
#include "meshwright/module.h"

namespace meshwright::nets {

// cos and sin of every position's angles: [length, head_dim] each, in the dtype and on the device of the activations.
struct RotaryTable {
  at::Tensor cos, sin;
};
template <class F>
void visit_tensors(RotaryTable& table, F&& f) {
  f(table.cos), f(table.sin);
}

// Inverse frequencies [head_dim / 2] in float32. `length` matters for RopeType::dynamic only.
at::Tensor inverse_frequencies(const RopeConfig& config, int64_t length);

// Holds no parameters and no buffers: tables are computed in float32 on first use and kept for later steps.
class RotaryEmbeddingImpl : public torch::nn::Module {
 public:
  explicit RotaryEmbeddingImpl(RopeConfig config);
  // For positions 0 .. length - 1 of activations like `x`.
  RotaryTable forward(const at::Tensor& x, int64_t length);

 private:
  struct Entry {
    int64_t capacity, stretched;
    at::Device device;
    at::ScalarType dtype;
    RotaryTable table;
  };
  RopeConfig config_;
  int64_t stretched_;  // dynamic: the longest sequence that the frequencies were stretched to
  std::vector<Entry> entries_;
};
MESHWRIGHT_MODULE(RotaryEmbedding);

// Turns queries and keys, [batch, length, heads, head_dim] each; the numbers of heads may differ.
std::pair<at::Tensor, at::Tensor> rotate(const at::Tensor& query, const at::Tensor& key, const RotaryTable& table);

}  // namespace meshwright::nets
