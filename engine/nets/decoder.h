// The modules of a decoder-only transformer under Hugging Face's names.
#pragma once

#include <torch/nn/modules/container/modulelist.h>

#include <memory>

#include "engine/nets/activation.h"
#include "engine/nets/attention.h"
#include "engine/nets/net_config.h"
#include "engine/nets/rotary.h"
#include "meshwright/layers.h"

namespace meshwright::nets {

class AttentionImpl : public torch::nn::Module {
 public:
  AttentionImpl(const NetConfig& config, int64_t window, std::shared_ptr<WindowMasks> masks, const at::TensorOptions& options);
  // x: [batch, length, hidden]
  at::Tensor forward(const at::Tensor& x, const RotaryTable& rotary);

 private:
  Linear q_proj_{nullptr}, k_proj_{nullptr}, v_proj_{nullptr}, o_proj_{nullptr};
  RMSNorm q_norm_{nullptr}, k_norm_{nullptr};  // empty without q and k norms
  int64_t head_dim_, window_;
  double dropout_;
  std::shared_ptr<WindowMasks> masks_;
};
MESHWRIGHT_MODULE(Attention);

class MlpImpl : public torch::nn::Module {
 public:
  MlpImpl(const NetConfig& config, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  Linear gate_proj_{nullptr}, up_proj_{nullptr}, down_proj_{nullptr};
  GatedActivation act_fn_{nullptr};
};
MESHWRIGHT_MODULE(Mlp);

class DecoderLayerImpl : public torch::nn::Module {
 public:
  DecoderLayerImpl(const NetConfig& config, int64_t window, std::shared_ptr<WindowMasks> masks, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x, const RotaryTable& rotary);

 private:
  Attention self_attn_{nullptr};
  Mlp mlp_{nullptr};
  RMSNorm input_layernorm_{nullptr}, post_attention_layernorm_{nullptr};
};
MESHWRIGHT_MODULE(DecoderLayer);

class DecoderModelImpl : public torch::nn::Module {
 public:
  DecoderModelImpl(const NetConfig& config, const at::TensorOptions& options);
  // Token ids [batch, length] to hidden states [batch, length, hidden].
  at::Tensor forward(const at::Tensor& ids);
  Embedding embed_tokens() { return embed_tokens_; }

 private:
  Embedding embed_tokens_{nullptr};
  torch::nn::ModuleList layers_;
  RMSNorm norm_{nullptr};
  RotaryEmbedding rotary_emb_{nullptr};
};
MESHWRIGHT_MODULE(DecoderModel);

// A Linear whose tensors are made as `options` say and hold nothing yet: LibTorch's own constructor fills them on the CPU.
Linear make_linear(int64_t in, int64_t out, bool bias, const at::TensorOptions& options);

}  // namespace meshwright::nets
