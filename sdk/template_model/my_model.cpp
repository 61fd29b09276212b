// my_model: a model family of your own. As it stands it is a small decoder with learned positions,
// which trains under every strategy, with tensor, sequence, context and pipeline parallelism;
// change its modules, and what outline() says of them.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <meshwright/model/running_model.h>
#include <meshwright/nn/attention.h>
#include <meshwright/nn/layers.h>
#include <meshwright/nn/stage.h>
#include <meshwright/parallel/scalar_type.h>
#include <meshwright/plugin_main.h>
#include <torch/nn/modules/container/modulelist.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

namespace mw = meshwright;
using at::Tensor;

namespace {

// Each option shows up in `meshwright plugins inspect` and is checked in the configuration.
constexpr std::array kOptions = {
    mw::int_option("vocabulary", "256", 2, 16777216, "Tokens."),
    mw::int_option("positions", "512", 1, 16777216, "The longest sample."),
    mw::int_option("width", "64", 1, 1048576, "Of hidden states."),
    mw::int_option("layers", "2", 1, 4096, "Decoder layers."),
    mw::int_option("heads", "4", 1, 4096, "Attention heads of a layer."),
};

struct Sizes {
  explicit Sizes(const mw::Options& o)
      : vocabulary(o.get_int("vocabulary")),
        positions(o.get_int("positions")),
        width(o.get_int("width")),
        layers(o.get_int("layers")),
        heads(o.get_int("heads")) {}
  int64_t vocabulary, positions, width, layers, heads;
};

// Modules are declared with MESHWRIGHT_MODULE, so that strategies can wrap them; parameters hold no
// values.
class LayerNormImpl : public torch::nn::Module {
 public:
  LayerNormImpl(int64_t width, const at::TensorOptions& options) {
    weight = register_parameter("weight", at::empty({width}, options));
    bias = register_parameter("bias", at::empty({width}, options));
  }
  Tensor forward(const Tensor& x) { return at::layer_norm(x, weight.sizes(), weight, bias, 1e-5); }
  Tensor weight, bias;
};
MESHWRIGHT_MODULE(LayerNorm);

mw::Embedding make_embedding(int64_t rows, int64_t width, const at::TensorOptions& options) {
  mw::Embedding out(torch::nn::EmbeddingOptions(1, 1));
  out->options.num_embeddings(rows).embedding_dim(width);
  mw::reallocate(out->weight, {rows, width}, options);
  return out;
}

class MyModelLayerImpl : public torch::nn::Module {
 public:
  MyModelLayerImpl(const Sizes& s, const at::TensorOptions& options) : head_(s.width / s.heads) {
    auto linear = [&](const char* name, int64_t in, int64_t out) {
      return register_module(name, mw::make_linear(in, out, true, options));
    };
    norm_attention_ = register_module("norm_attention", LayerNorm(s.width, options));
    query_ = linear("query", s.width, s.width);
    key_ = linear("key", s.width, s.width);
    value_ = linear("value", s.width, s.width);
    core_ = register_module("core", mw::AttentionCore(mw::AttentionOptions{
                                        .scale = 1 / std::sqrt(static_cast<double>(head_))}));
    output_ = linear("output", s.width, s.width);
    norm_feed_ = register_module("norm_feed", LayerNorm(s.width, options));
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
  LayerNorm norm_attention_{nullptr}, norm_feed_{nullptr};
  mw::AttentionCore core_{nullptr};
  mw::Linear query_{nullptr}, key_{nullptr}, value_{nullptr}, output_{nullptr}, up_{nullptr},
      down_{nullptr};
};
MESHWRIGHT_MODULE(MyModelLayer);

class MyModelImpl : public torch::nn::Module {
 public:
  MyModelImpl(const Sizes& s, const at::TensorOptions& options)
      : count_(s.layers), most_(s.positions) {
    tokens_ = register_module("tokens", make_embedding(s.vocabulary, s.width, options));
    positions_ = register_module("positions", make_embedding(s.positions, s.width, options));
    layers_ = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < s.layers; ++i) layers_->push_back(MyModelLayer(s, options));
    norm_ = register_module("norm", LayerNorm(s.width, options));
    lm_head_ = register_module("lm_head", mw::make_linear(s.width, s.vocabulary, false, options));
  }
  Tensor forward(const Tensor& input) {
    const mw::StagePart part = mw::current_stage();
    Tensor x = input;
    if (part.first) x = tokens_(input) + positions_(positions_of(input));
    for (int64_t i = part.begin; i < part.end_of(count_); ++i)
      x = layers_[static_cast<size_t>(i)]->as<MyModelLayer>()->forward(x);
    return part.last ? lm_head_(norm_(x)) : x;
  }

 private:
  // Of the rows that are here: under context parallelism a part of them, with documents each from
  // 0. Padding lies behind all that counts.
  Tensor positions_of(const Tensor& ids) const {
    const auto sequence = mw::current_sequence();
    if (sequence && sequence->positions.defined())
      return sequence->positions.to(ids.device()).clamp_max(most_ - 1);
    if (!sequence || sequence->rows.empty())
      return at::arange(ids.size(1), ids.options()).unsqueeze(0);
    std::vector<Tensor> runs;
    for (const mw::PositionRun& run : sequence->rows)
      runs.push_back(at::arange(run.position, run.position + run.count, ids.options()));
    return at::cat(runs).clamp_max(most_ - 1).unsqueeze(0);
  }
  int64_t count_, most_;
  mw::Embedding tokens_{nullptr}, positions_{nullptr};
  torch::nn::ModuleList layers_;
  LayerNorm norm_{nullptr};
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

class MyModelFamily final : public mw::ModelFamily {
 public:
  void validate(const mw::ModelRequest& request, mw::Diagnostics& diagnostics) const override {
    const Sizes s(request.options);
    if (s.width % s.heads != 0)
      diagnostics.add(mw::option_error(request.options, "heads", mw::ErrorCode::conflict,
                                       "a width of " + std::to_string(s.width) +
                                           " is no multiple of " + std::to_string(s.heads) +
                                           " heads",
                                       "1"));
  }
  // The model on paper: modules and parameters in the order in which they are registered above.
  mw::ModelOutline outline(const mw::ModelRequest& request) const override {
    using enum mw::ModuleKind;
    const Sizes s(request.options);
    mw::ModelOutline o;
    o.architecture = "MyModel";
    o.model_type = "my_model";
    o.hidden_size = s.width;
    o.layers = s.layers;
    o.attention_heads = o.key_value_heads = s.heads;
    o.head_dim = s.width / s.heads;
    o.vocab_size = s.vocabulary;
    o.inner_prefix = "";
    o.max_positions = s.positions;
    o.positions_end = true;
    auto module = [&](const std::string& name, mw::ModuleKind kind, const char* class_name) {
      o.modules.push_back({name, kind, class_name});
    };
    auto parameter = [&](const std::string& name, std::vector<int64_t> shape) {
      o.parameters.push_back(mw::ParameterOutline{name, std::move(shape), request.storage});
    };
    auto norm_of = [&](const std::string& name) {
      module(name, norm, "LayerNorm");
      parameter(name + ".weight", {s.width});
      parameter(name + ".bias", {s.width});
    };
    auto linear_of = [&](const std::string& name, int64_t in, int64_t out) {
      module(name, linear, "Linear");
      parameter(name + ".weight", {out, in});
      parameter(name + ".bias", {out});
    };
    module("", other, "MyModel");
    module("tokens", embedding, "Embedding");
    parameter("tokens.weight", {s.vocabulary, s.width});
    module("positions", embedding, "Embedding");
    parameter("positions.weight", {s.positions, s.width});
    module("layers", list, "ModuleList");
    for (int64_t i = 0; i < s.layers; ++i) {
      const std::string l = "layers." + std::to_string(i);
      module(l, layer, "MyModelLayer");
      norm_of(l + ".norm_attention");
      for (const char* part : {".query", ".key", ".value"}) linear_of(l + part, s.width, s.width);
      module(l + ".core", other, "AttentionCore");
      linear_of(l + ".output", s.width, s.width);
      norm_of(l + ".norm_feed");
      linear_of(l + ".up", s.width, 4 * s.width);
      linear_of(l + ".down", 4 * s.width, s.width);
    }
    norm_of("norm");
    module("lm_head", linear, "Linear");
    parameter("lm_head.weight", {s.vocabulary, s.width});
    // How tensor parallelism cuts it; under sequence parallelism both embeddings give a part.
    o.own_tp_plan = {
        {"tokens", "rowwise_rep"}, {"positions", "rowwise_rep"}, {"lm_head", "colwise_rep"}};
    for (const char* in : {"query", "key", "value", "up"})
      o.own_tp_plan.emplace_back(std::string("layers.*.") + in, "colwise");
    for (const char* out : {"output", "down"})
      o.own_tp_plan.emplace_back(std::string("layers.*.") + out, "rowwise");
    for (const char* name : {"layers.*.norm_attention", "layers.*.norm_feed", "norm"})
      o.own_sequence_plan.emplace_back(name, "sequence_parallel");
    return o;
  }
  std::unique_ptr<mw::RunningModel> make(const mw::ModelRequest& request) const override {
    return std::make_unique<Running>(
        Sizes(request.options),
        at::TensorOptions().dtype(mw::scalar_type(request.storage)).device(at::kMeta));
  }
};

constexpr std::array kModels = {mw::describe_model<MyModelFamily>(
    {.name = "my_model", .summary = "Describe it in one line", .options = kOptions})};

}  // namespace

// What the engine may know before it runs any of this: name, version, vendor, license (SPDX),
// summary. The version is that of project() in CMakeLists.txt.
MESHWRIGHT_MODEL_PLUGIN("my_model", MESHWRIGHT_PLUGIN_VERSION, "Your name", "Apache-2.0",
                        "What this plugin is for", kModels)
