// GPT-2 as it runs, with transformers' mathematics: the running half.
#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <meshwright/nn/attention.h>
#include <meshwright/nn/layers.h>
#include <meshwright/nn/stage.h>
#include <meshwright/parallel/plugin_runtime.h>
#include <meshwright/parallel/scalar_type.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cmath>
#include <vector>

#include "sizes.h"

namespace mw = meshwright;

namespace {

using at::Tensor;
using gpt2::Sizes;

class GPT2AttentionImpl : public torch::nn::Module {
 public:
  GPT2AttentionImpl(const Sizes& s, const at::TensorOptions& options)
      : head_(s.width / s.heads), dropout_(s.residual_dropout) {
    c_attn_ = register_module("c_attn", mw::make_linear(s.width, 3 * s.width, true, options));
    core_ = register_module("core",
                            mw::AttentionCore(mw::AttentionOptions{
                                .scale = s.scaled ? 1 / std::sqrt(static_cast<double>(head_)) : 1,
                                .dropout = s.attention_dropout}));
    c_proj_ = register_module("c_proj", mw::make_linear(s.width, s.width, true, options));
  }
  Tensor forward(const Tensor& x) {
    // Sizes are those of the projection: tensor parallelism leaves some of the heads.
    const Tensor all = c_attn_(x);
    const std::vector<Tensor> parts = all.view({all.size(0), all.size(1), -1, 3, head_}).unbind(3);
    const Tensor out = c_proj_(core_(parts[0], parts[1], parts[2]).flatten(2));
    return at::dropout(out, dropout_, is_training());
  }

 private:
  int64_t head_;
  double dropout_;
  mw::Linear c_attn_{nullptr}, c_proj_{nullptr};
  mw::AttentionCore core_{nullptr};
};
MESHWRIGHT_MODULE(GPT2Attention);

class GPT2MLPImpl : public torch::nn::Module {
 public:
  GPT2MLPImpl(const Sizes& s, const at::TensorOptions& options)
      : activation_(s.activation), dropout_(s.residual_dropout) {
    c_fc_ = register_module("c_fc", mw::make_linear(s.width, s.inner, true, options));
    c_proj_ = register_module("c_proj", mw::make_linear(s.inner, s.width, true, options));
  }
  Tensor forward(const Tensor& x) {
    const Tensor h = c_fc_(x);
    const Tensor active = activation_ == "relu" ? at::relu(h)
                          : activation_ == "silu"
                              ? at::silu(h)
                              : at::gelu(h, activation_ == "gelu" ? "none" : "tanh");
    return at::dropout(c_proj_(active), dropout_, is_training());
  }

 private:
  std::string activation_;
  double dropout_;
  mw::Linear c_fc_{nullptr}, c_proj_{nullptr};
};
MESHWRIGHT_MODULE(GPT2MLP);

class GPT2BlockImpl : public torch::nn::Module {
 public:
  GPT2BlockImpl(const Sizes& s, const at::TensorOptions& options) {
    ln_1_ = register_module("ln_1", mw::LayerNorm(s.width, s.epsilon, options));
    attn_ = register_module("attn", GPT2Attention(s, options));
    ln_2_ = register_module("ln_2", mw::LayerNorm(s.width, s.epsilon, options));
    mlp_ = register_module("mlp", GPT2MLP(s, options));
  }
  Tensor forward(const Tensor& x) {
    const Tensor h = x + attn_(ln_1_(x));
    return h + mlp_(ln_2_(h));
  }

 private:
  mw::LayerNorm ln_1_{nullptr}, ln_2_{nullptr};
  GPT2Attention attn_{nullptr};
  GPT2MLP mlp_{nullptr};
};
MESHWRIGHT_MODULE(GPT2Block);

class GPT2ModelImpl : public torch::nn::Module {
 public:
  GPT2ModelImpl(const Sizes& s, const at::TensorOptions& options)
      : positions_(s.positions), layers_(s.layers), dropout_(s.embedding_dropout) {
    wte = register_module("wte", mw::make_embedding(s.vocab, s.width, options));
    wpe_ = register_module("wpe", mw::make_embedding(s.positions, s.width, options));
    h_ = register_module("h", torch::nn::ModuleList());
    for (int64_t i = 0; i < s.layers; ++i) h_->push_back(GPT2Block(s, options));
    ln_f_ = register_module("ln_f", mw::LayerNorm(s.width, s.epsilon, options));
  }
  Tensor forward(const Tensor& input) {
    const mw::StagePart part = mw::current_stage();
    Tensor x = input;
    if (part.first)
      x = at::dropout(wte(input) + wpe_(mw::current_positions(input, positions_)), dropout_,
                      is_training());
    for (int64_t i = part.begin; i < part.end_of(layers_); ++i)
      x = h_[static_cast<size_t>(i)]->as<GPT2Block>()->forward(x);
    return part.last ? ln_f_(x) : x;
  }
  mw::Embedding wte{nullptr};

 private:
  int64_t positions_, layers_;
  double dropout_;
  mw::Embedding wpe_{nullptr};
  torch::nn::ModuleList h_;
  mw::LayerNorm ln_f_{nullptr};
};
MESHWRIGHT_MODULE(GPT2Model);

class GPT2LMHeadModelImpl : public torch::nn::Module {
 public:
  GPT2LMHeadModelImpl(const Sizes& s, const at::TensorOptions& options) {
    transformer_ = register_module("transformer", GPT2Model(s, options));
    lm_head_ = register_module("lm_head", mw::make_linear(s.width, s.vocab, false, options));
    if (s.tied) mw::tie_weight(*lm_head_, transformer_->wte->weight);
  }
  Tensor forward(const Tensor& input) {
    const Tensor hidden = transformer_(input);
    return mw::current_stage().last ? lm_head_(hidden) : hidden;
  }

 private:
  GPT2Model transformer_{nullptr};
  mw::Linear lm_head_{nullptr};
};
MESHWRIGHT_MODULE(GPT2LMHeadModel);

class Running final : public mw::RunningModel {
 public:
  Running(const Sizes& s, const at::TensorOptions& options)
      : positions_(s.positions), net_(s, options) {}
  std::shared_ptr<torch::nn::Module> module() override { return net_.ptr(); }
  Tensor forward(const Tensor& input) override { return net_(input); }
  int64_t max_positions() const override { return positions_; }

 private:
  int64_t positions_;
  GPT2LMHeadModel net_;
};

std::unique_ptr<mw::RunningModel> make(const mw::ModelFamily&, const mw::ModelRequest& request) {
  return std::make_unique<Running>(
      gpt2::read_sizes(request),
      at::TensorOptions().dtype(mw::scalar_type(request.storage)).device(at::kMeta));
}

}  // namespace

MESHWRIGHT_MODELS_RUN_WITH(make)
