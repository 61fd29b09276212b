// What both halves of the plugin read of a GPT-2 config.json.
#pragma once

#include <meshwright/model/model_family.h>

#include <cstdint>
#include <string>

namespace gpt2 {

struct Sizes {
  int64_t vocab = 50257, positions = 1024, width = 768, layers = 12, heads = 12, inner = 0;
  std::string activation = "gelu_new";
  double epsilon = 1e-5, range = 0.02;
  double embedding_dropout = 0.1, residual_dropout = 0.1, attention_dropout = 0.1;
  bool tied = true, scaled = true;
  bool drops() const {
    return embedding_dropout > 0 || residual_dropout > 0 || attention_dropout > 0;
  }
};

// Defaults are those of transformers' GPT2Config. Throws Error(file_unreadable | bad_model_config).
Sizes read_sizes(const meshwright::ModelRequest& request);

}  // namespace gpt2
