// Phi 1, 1.5 and 2: attention and MLP stand beside each other behind one LayerNorm, and everything
// has a bias.
#pragma once

#include <torch/nn/modules/container/modulelist.h>

#include "engine/modules/decoder.h"

namespace meshwright::modules {

class PhiMlpImpl : public torch::nn::Module {
 public:
  PhiMlpImpl(const NetConfig& config, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x) { return fc2_(activation_fn_(fc1_(x))); }

 private:
  PlainActivation activation_fn_{nullptr};
  Linear fc1_{nullptr}, fc2_{nullptr};
};
MESHWRIGHT_MODULE(PhiMlp);

class PhiDecoderLayerImpl : public torch::nn::Module {
 public:
  PhiDecoderLayerImpl(const NetConfig& config, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x, const RotaryTable& rotary);

 private:
  Attention self_attn_{nullptr};
  PhiMlp mlp_{nullptr};
  LayerNorm input_layernorm_{nullptr};
};
MESHWRIGHT_MODULE(PhiDecoderLayer);

class PhiModelImpl : public torch::nn::Module {
 public:
  PhiModelImpl(const NetConfig& config, const at::TensorOptions& options);
  // As DecoderModel's.
  at::Tensor forward(const at::Tensor& input);
  ScaledEmbedding embed_tokens() { return embed_tokens_; }

 private:
  ScaledEmbedding embed_tokens_{nullptr};
  torch::nn::ModuleList layers_;
  RotaryEmbedding rotary_emb_{nullptr};
  LayerNorm final_layernorm_{nullptr};
};
MESHWRIGHT_MODULE(PhiModel);

}  // namespace meshwright::modules
