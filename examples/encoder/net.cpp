// The encoder as it runs.
#include <ATen/ops/arange.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <meshwright/model/running_model.h>
#include <meshwright/nn/layers.h>
#include <meshwright/nn/stage.h>
#include <meshwright/parallel/plugin_runtime.h>
#include <meshwright/parallel/scalar_type.h>
#include <torch/nn/modules/container/modulelist.h>

#include <memory>

#include "encoder.h"

namespace mw = meshwright;
using at::Tensor;

namespace {

class EncoderLayerImpl : public torch::nn::Module {
 public:
  EncoderLayerImpl(const Sizes& s, const at::TensorOptions& options) : head_(s.width / s.heads) {
    auto linear = [&](const char* name, int64_t in, int64_t out) {
      return register_module(name, mw::make_linear(in, out, true, options));
    };
    norm_attention_ = register_module("norm_attention", mw::LayerNorm(s.width, 1e-5, options));
    query_ = linear("query", s.width, s.width);
    key_ = linear("key", s.width, s.width);
    value_ = linear("value", s.width, s.width);
    output_ = linear("output", s.width, s.width);
    norm_feed_ = register_module("norm_feed", mw::LayerNorm(s.width, 1e-5, options));
    up_ = linear("up", s.width, 4 * s.width);
    down_ = linear("down", 4 * s.width, s.width);
  }
  Tensor forward(const Tensor& x) {
    const Tensor read = norm_attention_(x);
    // Sizes are those of the projections: tensor parallelism leaves some of the heads.
    auto heads = [&](const Tensor& t) {
      return t.view({t.size(0), t.size(1), -1, head_}).transpose(1, 2);
    };
    // Every position sees all others: what lies behind it, too.
    const Tensor seen = at::scaled_dot_product_attention(heads(query_(read)), heads(key_(read)),
                                                         heads(value_(read)));
    const Tensor h = x + output_(seen.transpose(1, 2).flatten(2));
    return h + down_(at::gelu(up_(norm_feed_(h))));
  }

 private:
  int64_t head_;
  mw::LayerNorm norm_attention_{nullptr}, norm_feed_{nullptr};
  mw::Linear query_{nullptr}, key_{nullptr}, value_{nullptr}, output_{nullptr}, up_{nullptr},
      down_{nullptr};
};
MESHWRIGHT_MODULE(EncoderLayer);

class EncoderImpl : public torch::nn::Module {
 public:
  EncoderImpl(const Sizes& s, const at::TensorOptions& options) : count_(s.layers) {
    tokens_ = register_module("tokens", mw::make_embedding(s.vocabulary, s.width, options));
    positions_ = register_module("positions", mw::make_embedding(s.positions, s.width, options));
    layers_ = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < s.layers; ++i) layers_->push_back(EncoderLayer(s, options));
    norm_ = register_module("norm", mw::LayerNorm(s.width, 1e-5, options));
    lm_head_ = register_module("lm_head", mw::make_linear(s.width, s.vocabulary, false, options));
  }
  Tensor forward(const Tensor& input) {
    const mw::StagePart part = mw::current_stage();
    Tensor x = input;
    if (part.first)
      x = tokens_(input) + positions_(at::arange(input.size(1), input.options()).unsqueeze(0));
    for (int64_t i = part.begin; i < part.end_of(count_); ++i)
      x = layers_[static_cast<size_t>(i)]->as<EncoderLayer>()->forward(x);
    return part.last ? lm_head_(norm_(x)) : x;
  }

 private:
  int64_t count_;
  mw::Embedding tokens_{nullptr}, positions_{nullptr};
  torch::nn::ModuleList layers_;
  mw::LayerNorm norm_{nullptr};
  mw::Linear lm_head_{nullptr};
};
MESHWRIGHT_MODULE(Encoder);

class Running final : public mw::RunningModel {
 public:
  Running(const Sizes& s, const at::TensorOptions& options) : sizes_(s), net_(s, options) {}
  std::shared_ptr<torch::nn::Module> module() override { return net_.ptr(); }
  Tensor forward(const Tensor& input) override { return net_(input); }
  int64_t max_positions() const override { return sizes_.positions; }
  bool generates() const override { return false; }
  bool changes_batches() const override { return true; }

  // As BERT: of the tokens that are asked for, eight in ten become the mask, one some other token,
  // and one stays. Which ones follows from the sample's number, whatever rank has it.
  void change_batch(mw::HostBatch& batch) const override {
    const uint64_t seed = batch.training ? batch.seed : ~batch.seed;
    auto* tokens = batch.tokens.mutable_data_ptr<int64_t>();
    auto* targets = batch.targets.mutable_data_ptr<int64_t>();
    const int64_t length = batch.tokens.size(1), mask = sizes_.vocabulary - 1;
    for (int64_t i = 0; i < batch.tokens.numel(); ++i) {
      const auto sample = static_cast<uint64_t>(batch.sample + i / length),
                 place = static_cast<uint64_t>(3 * (i % length));
      targets[i] = -100;
      if (mw::random_unit(seed, sample, place) >= sizes_.masked) continue;
      targets[i] = tokens[i];
      const double how = mw::random_unit(seed, sample, place + 1);
      if (how < 0.8)
        tokens[i] = mask;
      else if (how < 0.9)
        tokens[i] = static_cast<int64_t>(mw::random_bits(seed, sample, place + 2) %
                                         static_cast<uint64_t>(mask));
    }
  }

 private:
  Sizes sizes_;
  Encoder net_;
};

std::unique_ptr<mw::RunningModel> make(const mw::ModelFamily&, const mw::ModelRequest& request) {
  return std::make_unique<Running>(
      Sizes(request.options),
      at::TensorOptions().dtype(mw::scalar_type(request.storage)).device(at::kMeta));
}

}  // namespace

MESHWRIGHT_MODELS_RUN_WITH(make)
