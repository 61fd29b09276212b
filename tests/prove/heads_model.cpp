// A model of a third party that brings what tensor parallelism does not know: a learnable sink for
// each head, and a gated norm behind attention, whose weight all heads share. Its option says which
// fault it has; without one it declares both and is right.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/container/modulelist.h>

#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <string>

#include "meshwright/model/running_model.h"
#include "meshwright/nn/layers.h"
#include "meshwright/nn/moe.h"
#include "meshwright/parallel/scalar_type.h"
#include "meshwright/plugin_main.h"

namespace {

using namespace meshwright;
using at::Tensor;

constexpr std::array kOptions = {
    bool_option("experts", false, "Blocks end with experts whose router has a bias."),
    choice_option("fault", "\"none\"",
                  "none|undeclared|norm_of_stream|sinks_of_stream|"
                  "first_sinks|whole_gate|loss_of_columns|own_buffer|none_by_row|"
                  "width_by_heads|louder_backward",
                  "What is wrong.")};

constexpr int64_t kWidth = 48, kHeads = 6, kEach = 8, kVocabulary = 64, kLayers = 2, kExperts = 4,
                  kInner = 8;

// The sinks as one parameter, which "colwise" cuts by row.
struct SinksImpl : torch::nn::Module {
  SinksImpl(int64_t heads, const at::TensorOptions& options) {
    weight = register_parameter("weight", at::empty({heads}, options));
  }
  Tensor forward(int64_t heads) { return weight.narrow(0, 0, heads); }
  Tensor weight;
};
MESHWRIGHT_MODULE(Sinks);

// An autograd node whose forward is right.
struct Louder : torch::autograd::Function<Louder> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    return {grads[0] * 1.25};
  }
};

struct AttentionImpl : torch::nn::Module {
  AttentionImpl(const std::string& fault, const at::TensorOptions& options)
      : width_by_heads(fault == "width_by_heads"), louder_backward(fault == "louder_backward") {
    for (auto [name, made] :
         {std::pair("query", &query), {"key", &key}, {"value", &value}, {"gate", &gate}})
      *made = register_module(name, make_linear(kWidth, kHeads * kEach, false, options));
    if (fault == "first_sinks" || fault == "sinks_of_stream" || fault == "none_by_row")
      whole_sinks = register_module("sinks", Sinks(kHeads, options));
    else
      sinks = register_module("sinks", make_linear(1, kHeads, false, options));
    norm = register_module("norm", RMSNorm(kEach, 1e-6, NormScale::weight, options));
    output = register_module("output", make_linear(kHeads * kEach, kWidth, true, options));
    if (fault == "own_buffer") {
      static std::atomic<int> made{0};
      bias = register_buffer("bias", at::full({1}, 0.01 * ++made, options.device(at::kCPU)));
    }
  }
  Tensor forward(const Tensor& x) {
    auto by_head = [&](const Tensor& rows) {
      return rows.view({rows.size(0), rows.size(1), -1, kEach}).transpose(1, 2);
    };
    const Tensor q = by_head(query(x)), k = by_head(key(x));
    Tensor v = by_head(value(x));
    if (louder_backward && v.size(1) < kHeads) v = Louder::apply(v);
    const int64_t batch = q.size(0), heads = q.size(1), length = q.size(2);
    const Tensor ahead =
        at::full({length, length}, -std::numeric_limits<double>::infinity(), q.options()).triu(1);
    const Tensor scores =
        at::matmul(q, k.transpose(2, 3)) /
            std::sqrt(static_cast<double>(width_by_heads ? kWidth / heads : kEach)) +
        ahead;
    // As a projection of one it is cut with the others: each rank has the sinks of its heads.
    const Tensor of_heads = whole_sinks ? whole_sinks(heads) : sinks(at::ones({1, 1}, x.options()));
    const Tensor sink = of_heads.view({1, heads, 1, 1}).expand({batch, heads, length, 1});
    const Tensor seen = at::softmax(at::cat({scores, sink}, 3), 3).narrow(3, 0, length);
    Tensor out = norm(at::matmul(seen, v)) * at::silu(by_head(gate(x)));
    if (bias.defined()) out = out + bias.to(out.scalar_type());
    return output(out.transpose(1, 2).flatten(2));
  }
  Linear query{nullptr}, key{nullptr}, value{nullptr}, gate{nullptr}, sinks{nullptr},
      output{nullptr};
  Sinks whole_sinks{nullptr};
  RMSNorm norm{nullptr};
  Tensor bias;
  bool width_by_heads, louder_backward;  // faults where a rank has some of the heads
};
MESHWRIGHT_MODULE(Attention);

MoeConfig of_experts() {
  MoeConfig out;
  out.dim = kWidth;
  out.moe_inter_dim = kInner;
  out.n_routed_experts = kExperts;
  out.n_activated_experts = 2;
  out.score_func = ScoreFunction::sigmoid_with_bias;
  out.gate_bias_update_factor = 1e-3;
  return out;
}

struct BlockImpl : torch::nn::Module {
  BlockImpl(const std::string& fault, bool experts, const at::TensorOptions& options) {
    norm = register_module("norm", RMSNorm(kWidth, 1e-6, NormScale::weight, options));
    attention = register_module("attention", Attention(fault, options));
    if (experts) mlp = register_module("mlp", Moe(of_experts(), options.device(at::kCPU)));
  }
  Tensor forward(const Tensor& x) {
    const Tensor h = x + attention(norm(x));
    return mlp ? h + mlp(h) : h;
  }
  RMSNorm norm{nullptr};
  Attention attention{nullptr};
  Moe mlp{nullptr};
};
MESHWRIGHT_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl(const std::string& fault, bool experts, const at::TensorOptions& options) {
    tokens = register_module("tokens", make_embedding(kVocabulary, kWidth, options));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < kLayers; ++i) layers->push_back(Block(fault, experts, options));
    norm = register_module("norm", RMSNorm(kWidth, 1e-6, NormScale::weight, options));
    lm_head = register_module("lm_head", make_linear(kWidth, kVocabulary, false, options));
  }
  Tensor forward(const Tensor& ids) {
    Tensor x = tokens(ids);
    for (const auto& layer : *layers) x = layer->as<Block>()->forward(x);
    return lm_head(norm(x));
  }
  Embedding tokens{nullptr};
  torch::nn::ModuleList layers;
  RMSNorm norm{nullptr};
  Linear lm_head{nullptr};
};
MESHWRIGHT_MODULE(Net);

class Running final : public RunningModel {
 public:
  Running(std::string fault, bool experts, const at::TensorOptions& options)
      : fault_(std::move(fault)), net_(fault_, experts, options) {}
  std::shared_ptr<torch::nn::Module> module() override { return net_.ptr(); }
  Tensor forward(const Tensor& input) override { return net_(input); }
  // A loss of its own. The head may be cut: without `shard` each rank's softmax is over its own
  // columns.
  Tensor loss_sum(const Tensor& output, const Tensor& targets, const Tensor& weights,
                  const VocabularyShard* shard) override {
    if (fault_ != "loss_of_columns" || shard == nullptr)
      return RunningModel::loss_sum(output, targets, weights, shard);
    const Tensor mine = targets.where(targets.lt(0), targets.remainder(output.size(-1)));
    return RunningModel::loss_sum(output, mine, weights, nullptr);
  }

 private:
  std::string fault_;
  Net net_;
};

class Heads final : public ModelFamily {
 public:
  ModelOutline outline(const ModelRequest& request) const override {
    using enum ModuleKind;
    const std::string fault = request.options.get_string("fault");
    const bool by_row = fault == "none_by_row";
    const bool of_one = fault == "first_sinks" || fault == "sinks_of_stream" || by_row;
    OutlineBuilder b(request.storage);
    ModelOutline& o = b.outline;
    o.architecture = "HeadsNet";
    o.model_type = "heads";
    o.hidden_size = kWidth;
    o.layers = kLayers;
    o.attention_heads = o.key_value_heads = kHeads;
    o.head_dim = kEach;
    o.vocab_size = kVocabulary;
    o.inner_prefix = "";
    b.module("", other, "Net");
    b.embedding("tokens", kVocabulary, kWidth);
    b.module("layers", list, "ModuleList");
    for (int64_t i = 0; i < kLayers; ++i) {
      const std::string l = "layers." + std::to_string(i), a = l + ".attention";
      b.module(l, layer, "Block");
      b.norm(l + ".norm", kWidth, "RMSNorm");
      b.module(a, other, "Attention");
      for (const char* in : {".query", ".key", ".value", ".gate"})
        b.linear(a + in, kWidth, kHeads * kEach);
      if (of_one) {
        b.module(a + ".sinks", other, "Sinks");
        b.parameter(a + ".sinks.weight", {kHeads});
      } else {
        b.linear(a + ".sinks", 1, kHeads);
      }
      b.norm(a + ".norm", kEach, "RMSNorm");
      b.linear(a + ".output", kHeads * kEach, kWidth, true);
      if (!request.options.get_bool("experts")) continue;
      b.module(l + ".mlp", other, "Moe");
      b.module(l + ".mlp.gate", router, "Router");
      b.parameter(l + ".mlp.gate.weight", {kExperts, kWidth});
      b.module(l + ".mlp.experts", experts, "GroupedExperts");
      b.parameter(l + ".mlp.experts.gate_and_up_projs", {kExperts, kWidth, 2 * kInner});
      b.parameter(l + ".mlp.experts.down_projs", {kExperts, kInner, kWidth});
    }
    b.norm("norm", kWidth, "RMSNorm");
    b.module("lm_head", linear, "Linear");
    b.parameter("lm_head.weight", {kVocabulary, kWidth});
    o.own_tp_plan = {{"tokens", "rowwise_rep"}, {"lm_head", "colwise_rep"}};
    const std::string attention = "layers.*.attention.";
    for (const char* in : {"query", "key", "value", "gate"})
      o.own_tp_plan.emplace_back(attention + in, "colwise");
    o.own_tp_plan.emplace_back(attention + "output", "rowwise");
    o.own_tp_plan.emplace_back("layers.*.norm", "replicated");
    // One weight for all heads, of which a rank has some: its gradient is a part of a sum.
    if (fault != "undeclared")
      o.own_tp_plan.emplace_back(attention + "norm", fault == "norm_of_stream"
                                                         ? "replicated"
                                                         : "replicated_with_grad_allreduce");
    if (fault == "whole_gate") o.own_tp_plan.emplace_back(attention + "gate", "colwise_rep");
    o.own_tp_plan.emplace_back(attention + "sinks", !of_one || by_row ? "colwise"
                                                    : fault == "sinks_of_stream"
                                                        ? "replicated"
                                                        : "replicated_with_grad_allreduce");
    return o;
  }
  void check_runs(const ModelRequest& request, Diagnostics& diagnostics) const override {
    if (request.sizes.cp > 1)
      diagnostics.add(Error(ErrorCode::model_does_not_fit, "the model sees whole samples")
                          .key("distributed.cp_size")
                          .help("set distributed.cp_size = 1"));
    if (request.sizes.pp > 1)
      diagnostics.add(Error(ErrorCode::model_does_not_fit, "the model has no stages")
                          .key("distributed.pp_size")
                          .help("set distributed.pp_size = 1"));
  }
  std::unique_ptr<RunningModel> make(const ModelRequest& request) const override {
    return std::make_unique<Running>(
        request.options.get_string("fault"), request.options.get_bool("experts"),
        at::TensorOptions().dtype(scalar_type(request.storage)).device(at::kMeta));
  }
};

constexpr std::array kModels = {describe_model<Heads>(
    {.name = "heads", .summary = "Sinks and a gated norm, by head", .options = kOptions})};

}  // namespace

MESHWRIGHT_MODEL_PLUGIN("heads", "1.0.0", "v", "l", "A model that tp does not know", kModels)
