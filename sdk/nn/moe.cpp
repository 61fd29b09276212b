#include "meshwright/nn/moe.h"
#include "meshwright/nn/attention.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <c10/core/GradMode.h>

#include "meshwright/error.h"
#include "meshwright/nn/layers.h"
#include "moe_activation.h"

namespace meshwright {

namespace {

using at::Tensor;

Linear linear(int64_t in, int64_t out, const MoeConfig& config, const at::TensorOptions& options) {
  Linear made = make_linear(in, out, /*bias=*/false, options);
  c10::NoGradGuard no_grad;
  if (!made->weight.is_meta()) made->weight.normal_(0, config.initializer_range);
  return made;
}

}  // namespace

void check_moe_config(const MoeConfig& c) {
  auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::bad_module, "no mixture of experts can be made of this: " + what);
  };
  auto text = [](int64_t n) { return std::to_string(n); };
  if (c.dim < 1 || c.moe_inter_dim < 1 || c.n_routed_experts < 1)
    refuse("dim = " + text(c.dim) + ", moe_inter_dim = " + text(c.moe_inter_dim) +
           " and n_routed_experts = " + text(c.n_routed_experts) + " must be positive");
  if (c.n_activated_experts < 1 || c.n_activated_experts > c.n_routed_experts)
    refuse("n_activated_experts = " + text(c.n_activated_experts) +
           " is not between 1 and n_routed_experts = " + text(c.n_routed_experts));
  if (c.n_expert_groups < 1 || c.n_routed_experts % c.n_expert_groups != 0)
    refuse("n_routed_experts = " + text(c.n_routed_experts) +
           " is not a multiple of n_expert_groups = " + text(c.n_expert_groups));
  if (c.n_limited_groups < 1 || c.n_limited_groups > c.n_expert_groups)
    refuse("n_limited_groups = " + text(c.n_limited_groups) +
           " is not between 1 and n_expert_groups = " + text(c.n_expert_groups));
  int64_t reachable = c.n_routed_experts / c.n_expert_groups * c.n_limited_groups;
  if (c.n_activated_experts > reachable)
    refuse("n_activated_experts = " + text(c.n_activated_experts) + " is more than the " +
           text(reachable) + " experts of " + text(c.n_limited_groups) + " groups");
  if (c.n_shared_experts < 0 || c.shared_expert_inter_dim < 0 || c.moe_latent_size < 0)
    refuse("a size is negative");
}

SharedExpertsImpl::SharedExpertsImpl(const MoeConfig& config, const at::TensorOptions& options)
    : activation_{config.shared_expert_activation, config.activation_alpha, config.activation_limit,
                  config.swiglu_limit} {
  // The two parts of quick_geglu do not take turns here: they come from two projections.
  if (activation_.kind == ExpertActivation::quick_geglu)
    activation_.kind = ExpertActivation::swigluoai;
  int64_t inner = config.shared_expert_inter_dim > 0
                      ? config.shared_expert_inter_dim
                      : config.n_shared_experts * config.moe_inter_dim;
  if (activation_.gated())
    gate_proj_ = register_module("gate_proj", linear(config.dim, inner, config, options));
  up_proj_ = register_module("up_proj", linear(config.dim, inner, config, options));
  down_proj_ = register_module("down_proj", linear(inner, config.dim, config, options));
}

Tensor SharedExpertsImpl::forward(const Tensor& x) {
  Tensor both;
  if (!gate_proj_.is_empty()) both = gate_proj_(x);
  const Tensor up = up_proj_(x);
  both = both.defined() ? at::cat({both, up}, -1) : up;
  return down_proj_(detail::activate(activation_, both, {}));
}

MoeImpl::MoeImpl(const MoeConfig& config, const at::TensorOptions& options)
    : config_(config), dispatcher_(local_dispatcher()) {
  check_moe_config(config);
  if (config.experts_before_gate)
    experts_ = register_module("experts", GroupedExperts(config, options));
  gate_ = register_module("gate", Router(config, options));
  if (!config.experts_before_gate)
    experts_ = register_module("experts", GroupedExperts(config, options));
  if (config.n_shared_experts > 0) {
    shared_experts_ = register_module("shared_experts", SharedExperts(config, options));
    if (config.shared_expert_gate)
      shared_expert_gate_ =
          register_module("shared_expert_gate", linear(config.dim, 1, config, options));
  }
  if (config.moe_latent_size > 0) {
    fc1_latent_proj_ = register_module("fc1_latent_proj",
                                       linear(config.dim, config.moe_latent_size, config, options));
    fc2_latent_proj_ = register_module("fc2_latent_proj",
                                       linear(config.moe_latent_size, config.dim, config, options));
  }
}

MoeImpl::~MoeImpl() = default;

Tensor MoeImpl::forward(const Tensor& x, const std::optional<Tensor>& given) {
  std::optional<Tensor> mask = given;
  if (std::shared_ptr<const Sequence> sequence = current_sequence();
      !mask && sequence && sequence->counts.defined() &&
      sequence->counts.numel() * x.size(-1) == x.numel())
    mask = sequence->counts.to(x.device());
  Tensor tokens = x.reshape({-1, x.size(-1)}), shared;
  Routing routing = gate_(tokens, mask ? std::optional<Tensor>(mask->reshape(-1)) : std::nullopt);
  auto meanwhile = [&] {
    if (shared_experts_.is_empty()) return;
    shared = shared_experts_(tokens);
    if (!shared_expert_gate_.is_empty()) shared = shared * at::sigmoid(shared_expert_gate_(tokens));
  };
  Tensor in = fc1_latent_proj_.is_empty() ? tokens : fc1_latent_proj_(tokens);
  Tensor out = dispatcher_->forward(in, routing, experts_, meanwhile);
  if (!fc2_latent_proj_.is_empty()) out = fc2_latent_proj_(out);
  if (shared.defined()) out = out + shared;
  return out.view(x.sizes());
}

void MoeImpl::set_dispatcher(std::shared_ptr<ExpertDispatcher> dispatcher) {
  dispatcher_ = std::move(dispatcher);
}

std::vector<std::pair<std::string, MoeImpl*>> find_moe_blocks(torch::nn::Module& model) {
  std::vector<std::pair<std::string, MoeImpl*>> out;
  if (auto* block = dynamic_cast<MoeImpl*>(&model)) out.emplace_back("", block);
  for (const auto& item : model.named_modules("", /*include_self=*/false))
    if (auto* block = dynamic_cast<MoeImpl*>(item.value().get()))
      out.emplace_back(item.key(), block);
  return out;
}

}  // namespace meshwright
