#include "engine/modules/phi.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>

#include "meshwright/nn/stage.h"

namespace meshwright::modules {

using at::Tensor;

LayerNormImpl::LayerNormImpl(int64_t size, double epsilon, const at::TensorOptions& options)
    : epsilon_(epsilon) {
  weight = register_parameter("weight", at::empty({size}, options));
  bias = register_parameter("bias", at::empty({size}, options));
}

Tensor LayerNormImpl::forward(const Tensor& x) {
  return at::layer_norm(x, weight.sizes(), weight, bias, epsilon_);
}

PhiMlpImpl::PhiMlpImpl(const NetConfig& config, const at::TensorOptions& options) {
  const outlines::DecoderSizes& s = config.family.sizes;
  activation_fn_ = register_module("activation_fn", PlainActivation(config.activation));
  fc1_ = register_module("fc1", make_linear(s.hidden, s.intermediate, true, options));
  fc2_ = register_module("fc2", make_linear(s.intermediate, s.hidden, true, options));
}

PhiDecoderLayerImpl::PhiDecoderLayerImpl(const NetConfig& config,
                                         const at::TensorOptions& options) {
  self_attn_ = register_module("self_attn", Attention(config, 0, options));
  mlp_ = register_module("mlp", PhiMlp(config, options));
  input_layernorm_ = register_module(
      "input_layernorm", LayerNorm(config.family.sizes.hidden, config.norm_epsilon, options));
  register_module("resid_dropout", NoDropout());
}

Tensor PhiDecoderLayerImpl::forward(const Tensor& x, const RotaryTable& rotary) {
  Tensor normed = input_layernorm_(x);
  return self_attn_(normed, rotary) + mlp_(normed) + x;
}

PhiModelImpl::PhiModelImpl(const NetConfig& config, const at::TensorOptions& options) {
  embed_tokens_ = register_module("embed_tokens", make_embedding(config, options));
  layers_ = register_module("layers", torch::nn::ModuleList());
  for (size_t i = 0; i < config.layers.size(); ++i)
    layers_->push_back(PhiDecoderLayer(config, options));
  rotary_emb_ = register_module("rotary_emb", RotaryEmbedding(config.ropes));
  register_module("embed_dropout", NoDropout());
  final_layernorm_ = register_module(
      "final_layernorm", LayerNorm(config.family.sizes.hidden, config.norm_epsilon, options));
}

Tensor PhiModelImpl::forward(const Tensor& input) {
  const StagePart part = current_stage();
  Tensor x = part.first ? embed_tokens_(input) : input;
  RotaryTable table = rotary_emb_(x, input.size(1), size_t{0});
  const int64_t end = part.end_of(static_cast<int64_t>(layers_->size()));
  for (int64_t i = part.begin; i < end; ++i)
    x = layers_[static_cast<size_t>(i)]->as<PhiDecoderLayer>()->forward(x, table);
  return part.last ? final_layernorm_(x) : x;
}

}  // namespace meshwright::modules
