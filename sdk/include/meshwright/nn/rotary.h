// Rotary position embeddings (Su et al. 2021) in transformers' layout: the two halves of a head are
// the two parts of each pair.
//
//   // Once a forward, for x [batch, rows, width]; then in every layer, before its attention core:
//   RotaryTable angles = rotary(x, x.size(1), 0);
//   std::tie(query, key) = rotate(query, key, angles);
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>
#include <vector>

#include "meshwright/model/config_json.h"
#include "meshwright/nn/module.h"

namespace meshwright {

// cos and sin of every row's angles, [rows, dim] each, or [batch, rows, dim] where samples differ;
// in the dtype and on the device of the activations.
struct RotaryTable {
  at::Tensor cos, sin;
  std::shared_ptr<const Later> later = {};
};
MESHWRIGHT_API TensorRefs tensors_of(RotaryTable& table);
template <class F>
void visit_tensors(RotaryTable& table, F&& f) {
  for (at::Tensor* tensor : tensors_of(table)) f(*tensor);
}

// Holds no parameters and no buffers: tables are computed in float32 on first use and kept for
// later steps.
class MESHWRIGHT_API RotaryEmbeddingImpl : public torch::nn::Module {
 public:
  explicit RotaryEmbeddingImpl(std::vector<RopeConfig> configs);
  ~RotaryEmbeddingImpl() override;
  // For `rows` rows of activations like `x`, under the configuration of that number: positions 0,
  // 1, ..., or those of current_sequence(), whose length then matters for the frequencies.
  RotaryTable forward(const at::Tensor& x, int64_t rows, size_t which);
  // Whether frequencies of some positions are others in longer samples: dynamic, longrope.
  bool follows_length() const;

 private:
  struct Tables;
  std::unique_ptr<Tables> tables_;
};
MESHWRIGHT_MODULE(RotaryEmbedding);

// Turns the leading `dim` elements of queries' and keys' heads, [batch, length, heads, head_dim]
// each; the numbers of heads may differ.
MESHWRIGHT_API std::pair<at::Tensor, at::Tensor> rotate(const at::Tensor& query,
                                                        const at::Tensor& key,
                                                        const RotaryTable& table);

}  // namespace meshwright
