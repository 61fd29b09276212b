#include "engine/modules/causal_lm.h"

#include "engine/modules/decoder.h"
#include "engine/modules/phi.h"
#include "engine/outlines/initial_values.h"
#include "engine/outlines/models.h"
#include "meshwright/nn/stage.h"
#include "meshwright/parallel/scalar_type.h"

namespace meshwright::modules {
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
  at::Tensor logits = parts_->lm_head(hidden);
  double cap = parts_->config.logit_softcap;
  return cap > 0 ? (logits / cap).tanh() * cap : logits;
}

int64_t CausalLMImpl::max_positions() const { return parts_->config.ropes[0].max_positions; }
outlines::InitialValues CausalLMImpl::initial_values() const {
  return outlines::initial_values(parts_->config);
}

CausalLM build_model(const std::filesystem::path& config_or_folder, DType storage,
                     at::Device device) {
  outlines::ConfigJson config = outlines::load_config(config_or_folder);
  NetConfig net = outlines::read_net_config(config);
  return CausalLM(std::move(net), outlines::make_outline(config, storage),
                  at::TensorOptions().dtype(scalar_type(storage)).device(device));
}

std::unique_ptr<RunningModel> make_hub_model(const ModelRequest& request) {
  return std::make_unique<RunningCausalLM>(build_model(request.config, request.storage, at::kMeta));
}

}  // namespace meshwright::modules
