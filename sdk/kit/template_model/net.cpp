// my_model as it runs.
#include <ATen/ops/gelu.h>
#include <meshwright/model/running_model.h>
#include <meshwright/nn/attention.h>
#include <meshwright/nn/layers.h>
#include <meshwright/nn/stage.h>
#include <meshwright/parallel/plugin_runtime.h>
#include <meshwright/parallel/scalar_type.h>
#include <torch/nn/modules/container/modulelist.h>

#include <cmath>
#include <memory>
#include <vector>

#include "my_model.h"

namespace mw = meshwright;
using at::Tensor;

namespace {

// Modules are declared with MESHWRIGHT_MODULE, so that strategies can wrap them; parameters hold no
// values.
class MyModelLayerImpl : public torch::nn::Module {
 public:
  MyModelLayerImpl(const Sizes& s, const at::TensorOptions& options) : head_(s.width / s.heads) {
    auto linear = [&](const char* name, int64_t in, int64_t out) {
      return register_module(name, mw::make_linear(in, out, true, options));
    };
    norm_attention_ = register_module("norm_attention", mw::LayerNorm(s.width, 1e-5, options));
    query_ = linear("query", s.width, s.width);
    key_ = linear("key", s.width, s.width);
    value_ = linear("value", s.width, s.width);
    core_ = register_module("core", mw::AttentionCore(mw::AttentionOptions{
                                        .scale = 1 / std::sqrt(static_cast<double>(head_))}));
    output_ = linear("output", s.width, s.width);
    norm_feed_ = register_module("norm_feed", mw::LayerNorm(s.width, 1e-5, options));
    up_ = linear("up", s.width, 4 * s.width);
    down_ = linear("down", 4 * s.width, s.width);
  }
  Tensor forward(const Tensor& x) {
    const Tensor read = norm_attention_(x);
    // Sizes are those of the projections: tensor parallelism leaves some of the heads.
    auto heads = [&](const Tensor& t) { return t.view({t.size(0), t.size(1), -1, head_}); };
    const Tensor seen = core_(heads(query_(read)), heads(key_(read)), heads(value_(read)));
    const Tensor h = x + output_(seen.flatten(2));
    return h + down_(at::gelu(up_(norm_feed_(h))));
  }

 private:
  int64_t head_;
  mw::LayerNorm norm_attention_{nullptr}, norm_feed_{nullptr};
  mw::AttentionCore core_{nullptr};
  mw::Linear query_{nullptr}, key_{nullptr}, value_{nullptr}, output_{nullptr}, up_{nullptr},
      down_{nullptr};
};
MESHWRIGHT_MODULE(MyModelLayer);

class MyModelImpl : public torch::nn::Module {
 public:
  MyModelImpl(const Sizes& s, const at::TensorOptions& options)
      : count_(s.layers), most_(s.positions) {
    tokens_ = register_module("tokens", mw::make_embedding(s.vocabulary, s.width, options));
    positions_ = register_module("positions", mw::make_embedding(s.positions, s.width, options));
    layers_ = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < s.layers; ++i) layers_->push_back(MyModelLayer(s, options));
    norm_ = register_module("norm", mw::LayerNorm(s.width, 1e-5, options));
    lm_head_ = register_module("lm_head", mw::make_linear(s.width, s.vocabulary, false, options));
  }
  Tensor forward(const Tensor& input) {
    const mw::StagePart part = mw::current_stage();
    Tensor x = input;
    if (part.first) x = tokens_(input) + positions_(mw::current_positions(input, most_));
    for (int64_t i = part.begin; i < part.end_of(count_); ++i)
      x = layers_[static_cast<size_t>(i)]->as<MyModelLayer>()->forward(x);
    return part.last ? lm_head_(norm_(x)) : x;
  }

 private:
  int64_t count_, most_;
  mw::Embedding tokens_{nullptr}, positions_{nullptr};
  torch::nn::ModuleList layers_;
  mw::LayerNorm norm_{nullptr};
  mw::Linear lm_head_{nullptr};
};
MESHWRIGHT_MODULE(MyModel);

class Running final : public mw::RunningModel {
 public:
  Running(const Sizes& s, const at::TensorOptions& options) : sizes_(s), net_(s, options) {}
  std::shared_ptr<torch::nn::Module> module() override { return net_.ptr(); }
  Tensor forward(const Tensor& input) override { return net_(input); }
  int64_t max_positions() const override { return sizes_.positions; }
  // A loss of its own: override loss_sum(). Masking, say: change_batch().

 private:
  Sizes sizes_;
  MyModel net_;
};

std::unique_ptr<mw::RunningModel> make(const mw::ModelFamily&, const mw::ModelRequest& request) {
  return std::make_unique<Running>(
      Sizes(request.options),
      at::TensorOptions().dtype(mw::scalar_type(request.storage)).device(at::kMeta));
}

}  // namespace

MESHWRIGHT_MODELS_RUN_WITH(make)
