// The modules of a decoder-only transformer under Hugging Face's names.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cstdint>
#include <memory>

#include "engine/models/net_config.h"
#include "engine/models/running/activation.h"
#include "engine/models/running/layer_graphs.h"
#include "meshwright/nn/attention.h"
#include "meshwright/nn/layers.h"
#include "meshwright/nn/module.h"
#include "meshwright/nn/moe.h"
#include "meshwright/nn/rotary.h"

namespace meshwright::modules {

using outlines::NetConfig;

class AttentionImpl : public torch::nn::Module {
 public:
  AttentionImpl(const NetConfig& config, int64_t window, const at::TensorOptions& options);
  // x: [batch, length, hidden]
  at::Tensor forward(const at::Tensor& x, const RotaryTable& rotary);

 private:
  struct Heads {
    at::Tensor query, key, value;  // [batch, length, heads, head_dim]
  };
  Heads project(const at::Tensor& x);

  Linear q_proj_{nullptr}, k_proj_{nullptr}, v_proj_{nullptr}, o_proj_{nullptr};
  Linear qkv_proj_{
      nullptr};  // in place of the first three; its rows are those of outlines::qkv_rows
  RMSNorm q_norm_{nullptr}, k_norm_{nullptr};              // empty without q and k norms
  LayerNorm q_layernorm_{nullptr}, k_layernorm_{nullptr};  // Phi's
  AttentionCore core_{nullptr};
  int64_t head_dim_, group_;  // group: query heads of a key-value head
};
MESHWRIGHT_MODULE(Attention);

class MlpImpl : public torch::nn::Module {
 public:
  MlpImpl(const NetConfig& config, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  Linear gate_proj_{nullptr}, up_proj_{nullptr}, down_proj_{nullptr};
  Linear gate_up_proj_{
      nullptr};  // in place of the first two; its rows are those of outlines::gate_up_rows
  int64_t group_rows_ = 0;  // of each of its parts
  GatedActivation act_fn_{nullptr};
};
MESHWRIGHT_MODULE(Mlp);

// The dropouts of Phi and Phi3 stand among its modules; they have no effect, for a model that asks
// for one is refused.
class NoDropoutImpl : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& x) { return x; }
};
MESHWRIGHT_MODULE(NoDropout);

class DecoderLayerImpl : public torch::nn::Module {
 public:
  // sparse: with a block of experts in place of the MLP.
  DecoderLayerImpl(const NetConfig& config, int64_t window, bool sparse,
                   const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x, const RotaryTable& rotary);

  std::shared_ptr<LayerGraphs> graphs;  // null: none

 private:
  at::Tensor compute(const at::Tensor& x, const RotaryTable& rotary);
  at::Tensor feed(const at::Tensor& x) { return moe_.is_empty() ? mlp_(x) : moe_(x); }
  Attention self_attn_{nullptr};
  Mlp mlp_{nullptr};
  Moe moe_{nullptr};  // one of the two, under the name mlp
  RMSNorm input_layernorm_{nullptr}, post_attention_layernorm_{nullptr};
  RMSNorm pre_feedforward_layernorm_{nullptr},
      post_feedforward_layernorm_{nullptr};  // empty but where there are four norms
};
MESHWRIGHT_MODULE(DecoderLayer);

class DecoderModelImpl : public torch::nn::Module {
 public:
  DecoderModelImpl(const NetConfig& config, const at::TensorOptions& options);
  // Token ids [batch, length] to hidden states [batch, length, hidden]; of the current stage alone,
  // whose input is the hidden states of the one before.
  at::Tensor forward(const at::Tensor& input);
  Embedding embed_tokens() { return embed_tokens_; }

 private:
  Embedding embed_tokens_{nullptr};
  torch::nn::ModuleList layers_;
  std::vector<size_t> ropes_;  // by layer
  RMSNorm norm_{nullptr};
  RotaryEmbedding rotary_emb_{nullptr};
};
MESHWRIGHT_MODULE(DecoderModel);

Embedding make_embedding(const NetConfig& config, const at::TensorOptions& options);

}  // namespace meshwright::modules
