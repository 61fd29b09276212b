#include "engine/models/running/causal_lm.h"

#include <torch/nn/modules/container/modulelist.h>

#include "engine/models/models.h"
#include "engine/models/running/decoder.h"
#include "meshwright/nn/stage.h"
#include "meshwright/parallel/scalar_type.h"

namespace meshwright::modules {

// Phi 1, 1.5 and 2: attention and MLP stand beside each other behind one LayerNorm, and everything
// has a bias.

using at::Tensor;

class PhiMlpImpl : public torch::nn::Module {
 public:
  PhiMlpImpl(const NetConfig& config, const at::TensorOptions& options) {
    const outlines::DecoderSizes& s = config.family.sizes;
    activation_fn_ = register_module("activation_fn", PlainActivation(config.activation));
    fc1_ = register_module("fc1", make_linear(s.hidden, s.intermediate, true, options));
    fc2_ = register_module("fc2", make_linear(s.intermediate, s.hidden, true, options));
  }
  Tensor forward(const Tensor& x) { return fc2_(activation_fn_(fc1_(x))); }

 private:
  PlainActivation activation_fn_{nullptr};
  Linear fc1_{nullptr}, fc2_{nullptr};
};
MESHWRIGHT_MODULE(PhiMlp);

class PhiDecoderLayerImpl : public torch::nn::Module {
 public:
  PhiDecoderLayerImpl(const NetConfig& config, const at::TensorOptions& options) {
    self_attn_ = register_module("self_attn", Attention(config, 0, options));
    mlp_ = register_module("mlp", PhiMlp(config, options));
    input_layernorm_ = register_module(
        "input_layernorm", LayerNorm(config.family.sizes.hidden, config.norm_epsilon, options));
    register_module("resid_dropout", NoDropout());
  }
  Tensor forward(const Tensor& x, const RotaryTable& rotary) {
    Tensor normed = input_layernorm_(x);
    return self_attn_(normed, rotary) + mlp_(normed) + x;
  }

 private:
  Attention self_attn_{nullptr};
  PhiMlp mlp_{nullptr};
  LayerNorm input_layernorm_{nullptr};
};
MESHWRIGHT_MODULE(PhiDecoderLayer);

class PhiModelImpl : public torch::nn::Module {
 public:
  PhiModelImpl(const NetConfig& config, const at::TensorOptions& options) {
    embed_tokens_ = register_module("embed_tokens", make_embedding(config, options));
    layers_ = register_module("layers", torch::nn::ModuleList());
    for (size_t i = 0; i < config.layers.size(); ++i)
      layers_->push_back(PhiDecoderLayer(config, options));
    rotary_emb_ = register_module("rotary_emb", RotaryEmbedding(config.ropes));
    register_module("embed_dropout", NoDropout());
    final_layernorm_ = register_module(
        "final_layernorm", LayerNorm(config.family.sizes.hidden, config.norm_epsilon, options));
  }
  // As DecoderModel's.
  Tensor forward(const Tensor& input) {
    const StagePart part = current_stage();
    Tensor x = part.first ? embed_tokens_(input) : input;
    RotaryTable table = rotary_emb_(x, input.size(1), size_t{0});
    const int64_t end = part.end_of(static_cast<int64_t>(layers_->size()));
    for (int64_t i = part.begin; i < end; ++i)
      x = layers_[static_cast<size_t>(i)]->as<PhiDecoderLayer>()->forward(x, table);
    return part.last ? final_layernorm_(x) : x;
  }
  Embedding embed_tokens() { return embed_tokens_; }

 private:
  Embedding embed_tokens_{nullptr};
  torch::nn::ModuleList layers_;
  RotaryEmbedding rotary_emb_{nullptr};
  LayerNorm final_layernorm_{nullptr};
};
MESHWRIGHT_MODULE(PhiModel);

namespace {

// LibTorch has no way to put one Parameter under a second, existing name.
struct RegisteredParameters : torch::nn::Module {
  static constexpr auto member = &RegisteredParameters::parameters_;
};

}  // namespace

struct CausalLMImpl::Parts {
  NetConfig config;
  DecoderModel model{nullptr};
  PhiModel phi{nullptr};  // one of the two, under the name model
  Linear lm_head{nullptr};
  std::shared_ptr<LoadBalance> balance;  // of all routers together; nullptr: no auxiliary loss
};

namespace {

thread_local bool last_row_alone = false;

}  // namespace

LastRowScope::LastRowScope() : outer_(std::exchange(last_row_alone, true)) {}
LastRowScope::~LastRowScope() { last_row_alone = outer_; }

CausalLMImpl::CausalLMImpl(NetConfig config, ModelOutline outline, const at::TensorOptions& options)
    : outline_(std::move(outline)), parts_(std::make_unique<Parts>()) {
  parts_->config = std::move(config);
  const outlines::DecoderSizes& s = parts_->config.family.sizes;
  const bool phi = parts_->config.family.beside, head_bias = phi;
  if (phi)
    parts_->phi = register_module("model", PhiModel(parts_->config, options));
  else
    parts_->model = register_module("model", DecoderModel(parts_->config, options));
  if (s.tied) {
    Linear head = make_linear(s.hidden, s.vocab, head_bias, options.device(at::kMeta));
    if (head_bias) reallocate(head->bias, {s.vocab}, options);
    head->weight = (phi ? parts_->phi->embed_tokens() : parts_->model->embed_tokens())->weight;
    (head.get()->*RegisteredParameters::member)["weight"] = head->weight;
    parts_->lm_head = register_module("lm_head", head);
  } else {
    parts_->lm_head =
        register_module("lm_head", make_linear(s.hidden, s.vocab, head_bias, options));
  }
  if (parts_->config.moe.balance_coefficient <= 0) return;
  parts_->balance = std::make_shared<LoadBalance>(parts_->config.moe.balance_coefficient,
                                                  LoadBalance::Form::whole_model);
  for (auto& [name, block] : find_moe_blocks(*parts_->model))
    block->gate()->load_balance = parts_->balance;
}

CausalLMImpl::~CausalLMImpl() = default;

at::Tensor CausalLMImpl::forward(const at::Tensor& input) {
  if (parts_->balance) parts_->balance->begin_pass();
  at::Tensor hidden = parts_->phi.is_empty() ? parts_->model(input) : parts_->phi(input);
  if (!current_stage().last) return hidden;
  if (last_row_alone) hidden = hidden.narrow(1, hidden.size(1) - 1, 1);
  at::Tensor logits = parts_->lm_head(hidden);
  double cap = parts_->config.logit_softcap;
  return cap > 0 ? (logits / cap).tanh() * cap : logits;
}

int64_t CausalLMImpl::max_positions() const { return parts_->config.ropes[0].max_positions; }

CausalLM build_model(const std::filesystem::path& config_or_folder, DType storage,
                     at::Device device) {
  ConfigJson config = outlines::load_config(config_or_folder);
  NetConfig net = outlines::read_net_config(config);
  return CausalLM(std::move(net), outlines::make_outline(config, storage),
                  at::TensorOptions().dtype(scalar_type(storage)).device(device));
}

std::unique_ptr<RunningModel> make_hub_model(const ModelRequest& request) {
  return std::make_unique<RunningCausalLM>(build_model(request.config, request.storage, at::kMeta));
}

}  // namespace meshwright::modules
