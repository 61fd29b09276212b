#include "engine/models/running/decoder.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "meshwright/nn/stage.h"
#include "sdk/base/cast_ahead.h"
#include "sdk/base/residual.h"

namespace meshwright::modules {
namespace {

using at::Tensor;

RMSNorm make_norm(int64_t size, const NetConfig& config, const at::TensorOptions& options) {
  return RMSNorm(size, config.norm_epsilon,
                 config.norms_plus_one ? NormScale::one_plus_weight : NormScale::weight, options);
}

// As transformers: the weights of a token's experts are a softmax over all experts, or, where they
// are made to sum up to 1, over those.
MoeConfig moe_config(const NetConfig& config) {
  const outlines::MoeFamily& family = *config.family.moe;
  MoeConfig out;
  out.dim = config.family.sizes.hidden;
  out.moe_inter_dim = family.sizes.intermediate_size;
  out.n_routed_experts = family.sizes.experts;
  out.n_activated_experts = family.sizes.active_experts;
  out.softmax_before_topk = !config.moe.normalised;
  out.expert_activation =
      config.activation == "gelu" ? ExpertActivation::geglu : ExpertActivation::swiglu;
  out.experts_before_gate = family.experts_first;
  return out;
}

}  // namespace

Embedding make_embedding(const NetConfig& config, const at::TensorOptions& options) {
  const outlines::DecoderSizes& s = config.family.sizes;
  Embedding embedding = meshwright::make_embedding(s.vocab, s.hidden, options, config.padding_row);
  embedding->scale = config.embedding_scale;
  return embedding;
}

AttentionImpl::AttentionImpl(const NetConfig& config, int64_t window,
                             const at::TensorOptions& options)
    : head_dim_(config.family.sizes.head_dim),
      group_(config.family.sizes.heads / config.family.sizes.kv_heads) {
  const outlines::DecoderSizes& s = config.family.sizes;
  const outlines::AttentionShape& shape = config.family.attention;
  if (!config.family.fused) {
    q_proj_ = register_module("q_proj",
                              make_linear(s.hidden, s.heads * head_dim_, shape.qkv_bias, options));
    k_proj_ = register_module(
        "k_proj", make_linear(s.hidden, s.kv_heads * head_dim_, shape.qkv_bias, options));
    v_proj_ = register_module(
        "v_proj", make_linear(s.hidden, s.kv_heads * head_dim_, shape.qkv_bias, options));
  }
  o_proj_ = register_module(shape.output,
                            make_linear(s.heads * head_dim_, s.hidden, shape.output_bias, options));
  if (config.family.fused)
    qkv_proj_ = register_module(
        "qkv_proj",
        make_linear(s.hidden, (s.heads + 2 * s.kv_heads) * head_dim_, shape.qkv_bias, options));
  core_ = register_module(
      "core",
      AttentionCore(AttentionOptions{
          .scale = config.attention_scale, .window = window, .dropout = config.attention_dropout}));
  if (!shape.qk_norms) return;
  if (config.family.beside) {
    q_layernorm_ =
        register_module("q_layernorm", LayerNorm(head_dim_, config.norm_epsilon, options));
    k_layernorm_ =
        register_module("k_layernorm", LayerNorm(head_dim_, config.norm_epsilon, options));
    return;
  }
  q_norm_ = register_module("q_norm", make_norm(head_dim_, config, options));
  k_norm_ = register_module("k_norm", make_norm(head_dim_, config, options));
}

// Sizes are those of the projections: tensor parallelism leaves a part of the heads, and x may hold
// a part of the sequence.
AttentionImpl::Heads AttentionImpl::project(const Tensor& x) {
  auto heads = [&](const Tensor& t) { return t.view({t.size(0), t.size(1), -1, head_dim_}); };
  if (qkv_proj_.is_empty()) return {heads(q_proj_(x)), heads(k_proj_(x)), heads(v_proj_(x))};
  Tensor all = qkv_proj_(x);
  std::vector<Tensor> parts = all.view({all.size(0), all.size(1), -1, group_ + 2, head_dim_})
                                  .split_with_sizes({group_, 1, 1}, 3);
  return {parts[0].flatten(2, 3), parts[1].squeeze(3), parts[2].squeeze(3)};
}

Tensor AttentionImpl::forward(const Tensor& x, const RotaryTable& rotary) {
  Heads heads = project(x);
  if (!q_norm_.is_empty()) heads.query = q_norm_(heads.query), heads.key = k_norm_(heads.key);
  if (!q_layernorm_.is_empty())
    heads.query = q_layernorm_(heads.query), heads.key = k_layernorm_(heads.key);
  std::tie(heads.query, heads.key) = rotate(heads.query, heads.key, rotary);
  Tensor out = core_(heads.query, heads.key, heads.value);
  return o_proj_(out.flatten(2));
}

MlpImpl::MlpImpl(const NetConfig& config, const at::TensorOptions& options) {
  const outlines::DecoderSizes& s = config.family.sizes;
  bool bias = config.family.mlp_bias;
  if (config.family.fused) {
    gate_up_proj_ =
        register_module("gate_up_proj", make_linear(s.hidden, 2 * s.intermediate, bias, options));
    group_rows_ = outlines::gate_up_rows(s).parts[0];
  } else {
    gate_proj_ = register_module("gate_proj", make_linear(s.hidden, s.intermediate, bias, options));
    up_proj_ = register_module("up_proj", make_linear(s.hidden, s.intermediate, bias, options));
  }
  down_proj_ = register_module("down_proj", make_linear(s.intermediate, s.hidden, bias, options));
  act_fn_ = register_module(config.family.fused ? "activation_fn" : "act_fn",
                            GatedActivation(config.activation));
}

Tensor MlpImpl::forward(const Tensor& x) {
  if (gate_up_proj_.is_empty()) {
    Tensor gate = gate_proj_(x);  // before the other: adapters of both are multiplied here
    return down_proj_(act_fn_(gate, up_proj_(x)));
  }
  Tensor both = gate_up_proj_(x);
  std::vector<Tensor> parts = both.view({both.size(0), both.size(1), -1, 2, group_rows_}).unbind(3);
  return down_proj_(act_fn_(parts[0], parts[1]).flatten(2));
}

DecoderLayerImpl::DecoderLayerImpl(const NetConfig& config, int64_t window, bool sparse,
                                   const at::TensorOptions& options) {
  auto norm = [&](const char* name) {
    return register_module(name, make_norm(config.family.sizes.hidden, config, options));
  };
  self_attn_ = register_module("self_attn", Attention(config, window, options));
  if (sparse)
    moe_ = register_module("mlp", Moe(moe_config(config), options));
  else
    mlp_ = register_module("mlp", Mlp(config, options));
  input_layernorm_ = norm("input_layernorm");
  post_attention_layernorm_ = norm("post_attention_layernorm");
  if (config.family.four_norms) {
    pre_feedforward_layernorm_ = norm("pre_feedforward_layernorm");
    post_feedforward_layernorm_ = norm("post_feedforward_layernorm");
  }
  if (config.family.fused)
    for (const char* name : {"resid_attn_dropout", "resid_mlp_dropout"})
      register_module(name, NoDropout());
}

Tensor DecoderLayerImpl::forward(const Tensor& x, const RotaryTable& rotary) {
  if (!graphs) return compute(x, rotary);
  return graphs->forward(x, rotary, *this, [this](const Tensor& in, const RotaryTable& angles) {
    return compute(in, angles);
  });
}

Tensor DecoderLayerImpl::compute(const Tensor& x, const RotaryTable& rotary) {
  const CastAhead ahead(x, *this);
  auto [stream, read] = add_and_norm(x, {}, input_layernorm_);
  Tensor attended = self_attn_(read, rotary);
  if (pre_feedforward_layernorm_.is_empty()) {
    std::tie(stream, read) = add_and_norm(stream, attended, post_attention_layernorm_);
    return stream + feed(read);
  }
  std::tie(stream, read) =
      add_and_norm(stream, post_attention_layernorm_(attended), pre_feedforward_layernorm_);
  return stream + post_feedforward_layernorm_(feed(read));
}

DecoderModelImpl::DecoderModelImpl(const NetConfig& config, const at::TensorOptions& options) {
  embed_tokens_ = register_module("embed_tokens", make_embedding(config, options));
  layers_ = register_module("layers", torch::nn::ModuleList());
  for (size_t i = 0; i < config.layers.size(); ++i) {
    bool sparse = config.family.moe && config.family.moe->sparse[i];
    layers_->push_back(DecoderLayer(config, config.layers[i].window, sparse, options));
    ropes_.push_back(config.layers[i].rope);
  }
  norm_ = register_module("norm", make_norm(config.family.sizes.hidden, config, options));
  rotary_emb_ = register_module("rotary_emb", RotaryEmbedding(config.ropes));
}

Tensor DecoderModelImpl::forward(const Tensor& input) {
  const StagePart part = current_stage();
  Tensor x = part.first ? embed_tokens_(input) : input;
  std::vector<std::optional<RotaryTable>> tables(*std::max_element(ropes_.begin(), ropes_.end()) +
                                                 1);
  const int64_t end = part.end_of(static_cast<int64_t>(ropes_.size()));
  for (int64_t i = part.begin; i < end; ++i) {
    const size_t layer = static_cast<size_t>(i), rope = ropes_[layer];
    if (!tables[rope]) tables[rope] = rotary_emb_(x, input.size(1), rope);
    x = layers_[layer]->as<DecoderLayer>()->forward(x, *tables[rope]);
  }
  return part.last ? norm_(x) : x;
}

}  // namespace meshwright::modules
