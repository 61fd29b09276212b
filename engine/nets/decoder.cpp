#include "engine/nets/decoder.h"

#include <ATen/ops/empty.h>

namespace meshwright::nets {
namespace {

using at::Tensor;

// The same Parameter with other sizes, dtype and device; modules and optimizers that hold it see the change.
void become(const Tensor& parameter, at::IntArrayRef sizes, const at::TensorOptions& options) {
  parameter.unsafeGetTensorImpl()->shallow_copy_from(at::empty(sizes, options).getIntrusivePtr());
}

Embedding make_embedding(int64_t rows, int64_t width, std::optional<int64_t> padding_row, const at::TensorOptions& options) {
  Embedding embedding(torch::nn::EmbeddingOptions(1, 1));
  embedding->options.num_embeddings(rows).embedding_dim(width).padding_idx(padding_row);
  become(embedding->weight, {rows, width}, options);
  return embedding;
}

RMSNorm make_norm(int64_t size, double epsilon, const at::TensorOptions& options) {
  RMSNorm norm(1, epsilon);
  become(norm->weight, {size}, options);
  return norm;
}

}  // namespace

Linear make_linear(int64_t in, int64_t out, bool bias, const at::TensorOptions& options) {
  Linear linear(torch::nn::LinearOptions(1, 1).bias(bias));
  linear->options.in_features(in).out_features(out);
  become(linear->weight, {out, in}, options);
  if (bias) become(linear->bias, {out}, options);
  return linear;
}

AttentionImpl::AttentionImpl(const NetConfig& config, int64_t window, std::shared_ptr<WindowMasks> masks, const at::TensorOptions& options)
    : head_dim_(config.family.sizes.head_dim), window_(window), dropout_(config.attention_dropout), masks_(std::move(masks)) {
  const models::DecoderSizes& s = config.family.sizes;
  const models::AttentionShape& shape = config.family.attention;
  q_proj_ = register_module("q_proj", make_linear(s.hidden, s.heads * head_dim_, shape.qkv_bias, options));
  k_proj_ = register_module("k_proj", make_linear(s.hidden, s.kv_heads * head_dim_, shape.qkv_bias, options));
  v_proj_ = register_module("v_proj", make_linear(s.hidden, s.kv_heads * head_dim_, shape.qkv_bias, options));
  o_proj_ = register_module(shape.output, make_linear(s.heads * head_dim_, s.hidden, shape.output_bias, options));
  if (!shape.qk_norms) return;
  q_norm_ = register_module("q_norm", make_norm(head_dim_, config.norm_epsilon, options));
  k_norm_ = register_module("k_norm", make_norm(head_dim_, config.norm_epsilon, options));
}

Tensor AttentionImpl::forward(const Tensor& x, const RotaryTable& rotary) {
  // Sizes are those of the projections: tensor parallelism leaves a part of the heads, and x may hold a part of the sequence.
  auto heads = [&](const Tensor& t) { return t.view({t.size(0), t.size(1), -1, head_dim_}); };
  Tensor query = heads(q_proj_(x)), key = heads(k_proj_(x)), value = heads(v_proj_(x));
  if (!q_norm_.is_empty()) query = q_norm_(query), key = k_norm_(key);
  std::tie(query, key) = rotate(query, key, rotary);
  Tensor out = causal_attention(query, key, value, window_, is_training() ? dropout_ : 0.0, *masks_);
  return o_proj_(out.flatten(2));
}

MlpImpl::MlpImpl(const NetConfig& config, const at::TensorOptions& options) {
  const models::DecoderSizes& s = config.family.sizes;
  bool bias = config.family.mlp_bias;
  gate_proj_ = register_module("gate_proj", make_linear(s.hidden, s.intermediate, bias, options));
  up_proj_ = register_module("up_proj", make_linear(s.hidden, s.intermediate, bias, options));
  down_proj_ = register_module("down_proj", make_linear(s.intermediate, s.hidden, bias, options));
  act_fn_ = register_module("act_fn", GatedActivation(config.activation));
}

Tensor MlpImpl::forward(const Tensor& x) { return down_proj_(act_fn_(gate_proj_(x), up_proj_(x))); }

DecoderLayerImpl::DecoderLayerImpl(const NetConfig& config, int64_t window, std::shared_ptr<WindowMasks> masks,
                                   const at::TensorOptions& options) {
  int64_t hidden = config.family.sizes.hidden;
  self_attn_ = register_module("self_attn", Attention(config, window, std::move(masks), options));
  mlp_ = register_module("mlp", Mlp(config, options));
  input_layernorm_ = register_module("input_layernorm", make_norm(hidden, config.norm_epsilon, options));
  post_attention_layernorm_ = register_module("post_attention_layernorm", make_norm(hidden, config.norm_epsilon, options));
}

Tensor DecoderLayerImpl::forward(const Tensor& x, const RotaryTable& rotary) {
  Tensor y = x + self_attn_(input_layernorm_(x), rotary);
  return y + mlp_(post_attention_layernorm_(y));
}

DecoderModelImpl::DecoderModelImpl(const NetConfig& config, const at::TensorOptions& options) {
  const models::DecoderSizes& s = config.family.sizes;
  embed_tokens_ = register_module("embed_tokens", make_embedding(s.vocab, s.hidden, config.padding_row, options));
  layers_ = register_module("layers", torch::nn::ModuleList());
  auto masks = std::make_shared<WindowMasks>();
  for (int64_t window : config.windows) layers_->push_back(DecoderLayer(config, window, masks, options));
  norm_ = register_module("norm", make_norm(s.hidden, config.norm_epsilon, options));
  rotary_emb_ = register_module("rotary_emb", RotaryEmbedding(config.rope));
}

Tensor DecoderModelImpl::forward(const Tensor& ids) {
  Tensor x = embed_tokens_(ids);
  RotaryTable rotary = rotary_emb_(x, ids.size(1));
  for (const std::shared_ptr<torch::nn::Module>& module : *layers_) x = module->as<DecoderLayer>()->forward(x, rotary);
  return norm_(x);
}

}  // namespace meshwright::nets
