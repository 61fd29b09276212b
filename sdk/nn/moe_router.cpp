// The router: which experts a token goes to, and with what weight (semantics 10.2).
#include <ATen/autocast_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <limits>

#include "meshwright/error.h"
#include "meshwright/nn/moe.h"
#include "meshwright/parallel/activation_checkpoint.h"

namespace meshwright {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using meshwright::detail::wide;

// x W^T + b whose result is there already.
struct KnownProduct : torch::autograd::Function<KnownProduct> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias, const Tensor& result) {
    context->save_for_backward({x, weight});
    context->saved_data["bias"] = bias.has_value();
    return result.variable_data();
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    variable_list saved = context->get_saved_variables();
    const Tensor& g = grads[0];
    return {g.mm(saved[1]), g.t().mm(saved[0]),
            context->saved_data["bias"].toBool() ? g.sum(0) : Tensor(), Tensor()};
  }
};

// The selected scores [T, k], over their sum where they are normalised, times `scale`: one pass
// each way. float32 on the CPU.
struct TakeSelected : torch::autograd::Function<TakeSelected> {
  static Tensor forward(AutogradContext* context, const Tensor& given_scores,
                        const Tensor& given_indices, bool normalise, double scale) {
    Tensor scores = given_scores.contiguous(), indices = given_indices.contiguous();
    int64_t tokens = indices.size(0), active = indices.size(1), experts = scores.size(1);
    Tensor out = at::empty({tokens, active}, scores.options());
    const float* from = scores.const_data_ptr<float>();
    const int64_t* chosen = indices.const_data_ptr<int64_t>();
    float* to = out.mutable_data_ptr<float>();
    for (int64_t t = 0; t < tokens; ++t, from += experts, chosen += active, to += active) {
      float sum = normalise ? kTiny : 1;
      if (normalise)
        for (int64_t j = 0; j < active; ++j) sum += from[chosen[j]];
      for (int64_t j = 0; j < active; ++j)
        to[j] = from[chosen[j]] / sum * static_cast<float>(scale);
    }
    context->save_for_backward({scores, indices});
    context->saved_data["normalise"] = normalise;
    context->saved_data["scale"] = scale;
    return out;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    variable_list saved = context->get_saved_variables();
    const Tensor &scores = saved[0], &indices = saved[1];
    bool normalise = context->saved_data["normalise"].toBool();
    auto scale = static_cast<float>(context->saved_data["scale"].toDouble());
    Tensor grad = grads[0].contiguous(), out = at::zeros(scores.sizes(), scores.options());
    int64_t tokens = indices.size(0), active = indices.size(1), experts = scores.size(1);
    const float *from = scores.const_data_ptr<float>(), *g = grad.const_data_ptr<float>();
    const int64_t* chosen = indices.const_data_ptr<int64_t>();
    float* to = out.mutable_data_ptr<float>();
    for (int64_t t = 0; t < tokens;
         ++t, from += experts, to += experts, chosen += active, g += active) {
      float sum = normalise ? kTiny : 1, along = 0;
      if (normalise) {
        for (int64_t j = 0; j < active; ++j) sum += from[chosen[j]];
        for (int64_t j = 0; j < active; ++j) along += g[j] * from[chosen[j]];
      }
      for (int64_t j = 0; j < active; ++j) to[chosen[j]] = (g[j] - along / sum) / sum * scale;
    }
    return {out, Tensor(), Tensor(), Tensor()};
  }
  static constexpr float kTiny = 1e-20F;
};

// Assignments per expert, [E] int64. Masked tokens do not count.
Tensor loads_of(const Tensor& indices, const std::optional<Tensor>& mask, int64_t experts) {
  Tensor out = at::zeros({experts}, indices.options());
  if (!indices.is_cpu()) {
    Tensor ones = mask ? mask->unsqueeze(1).expand_as(indices).reshape(-1).to(at::kLong)
                       : at::full_like(indices, 1).reshape(-1);
    return out.scatter_add_(0, indices.reshape(-1), ones);
  }
  Tensor chosen = indices.contiguous(), counted = mask ? mask->contiguous() : Tensor();
  const int64_t* expert = chosen.const_data_ptr<int64_t>();
  const bool* counts = counted.defined() ? counted.const_data_ptr<bool>() : nullptr;
  int64_t* load = out.mutable_data_ptr<int64_t>();
  for (int64_t t = 0; t < chosen.size(0); ++t)
    for (int64_t j = 0; j < chosen.size(1); ++j, ++expert)
      if (counts == nullptr || counts[t]) ++load[*expert];
  return out;
}

// Identity on the weights; backward adds the auxiliary loss's gradient to the scores.
struct AddLoadBalance : torch::autograd::Node {
  std::shared_ptr<LoadBalance> balance;
  LoadBalance::Pass pass;
  std::vector<int64_t> sizes;  // of the scores
  at::ScalarType dtype = at::kFloat;
  Tensor mask;

  std::string name() const override { return "AddLoadBalance"; }
  variable_list apply(variable_list&& grads) override {
    Tensor to_scores = balance->gradient(pass).to(dtype).expand(sizes);
    if (mask.defined()) to_scores = to_scores * mask.unsqueeze(1).to(dtype);
    return {grads[0], to_scores};
  }
};

Tensor with_load_balance(const Tensor& weights, const Tensor& scores,
                         std::shared_ptr<LoadBalance> balance, LoadBalance::Pass pass,
                         const Tensor& mask) {
  if (!c10::GradMode::is_enabled() || !weights.requires_grad()) return weights;
  auto node = std::shared_ptr<AddLoadBalance>(new AddLoadBalance(), torch::autograd::deleteNode);
  node->balance = std::move(balance);
  node->pass = std::move(pass);
  node->sizes = scores.sizes().vec();
  node->dtype = scores.scalar_type();
  node->mask = mask;
  node->set_next_edges(torch::autograd::collect_next_edges(weights, scores));
  Tensor out = weights.detach();
  torch::autograd::set_history(out, node);
  return out;
}

// The scores of the best groups' experts. The scores of other experts are multiplied by 0, or
// become -infinity.
Tensor limit_groups(const Tensor& scores, const MoeConfig& config, bool top_two, bool to_infinity) {
  if (config.n_expert_groups <= 1) return scores;
  int64_t tokens = scores.size(0), size = config.n_routed_experts / config.n_expert_groups;
  Tensor grouped = scores.view({tokens, config.n_expert_groups, size});
  Tensor best = top_two ? std::get<0>(grouped.topk(std::min<int64_t>(2, size), -1)).sum(-1)
                        : grouped.amax(-1);
  Tensor chosen = std::get<1>(best.topk(config.n_limited_groups, -1));
  Tensor inside = at::zeros(best.sizes(), best.options().dtype(at::kBool))
                      .scatter_(1, chosen, true)
                      .unsqueeze(-1);
  Tensor kept = to_infinity ? grouped.masked_fill(inside.logical_not(),
                                                  -std::numeric_limits<double>::infinity())
                            : grouped * inside.to(grouped.scalar_type());
  return kept.reshape({tokens, config.n_routed_experts});
}

Tensor scores_of(const Tensor& logits, ScoreFunction function) {
  Tensor x = wide(logits);
  switch (function) {
    case ScoreFunction::softmax:
    case ScoreFunction::softmax_with_bias:
      return x.softmax(-1);
    case ScoreFunction::sigmoid:
    case ScoreFunction::sigmoid_with_bias:
      return x.sigmoid();
    case ScoreFunction::sqrtsoftplus:
      return at::softplus(x).sqrt();
  }
  return x;
}

}  // namespace

void LoadBalance::begin_pass() {
  pass_ = {};
  added_ = false;
}

LoadBalance::Pass LoadBalance::add(const Tensor& load, const Tensor& scores, const Tensor& tokens,
                                   int64_t active) {
  if (form_ == Form::each_layer) active_ = active;
  if (form_ == Form::each_layer || !pass_.load.defined()) {
    pass_ = {load, scores, tokens};
    if (form_ == Form::each_layer && add_ranks) add_ranks({pass_.load, pass_.scores, pass_.tokens});
    return pass_;
  }
  pass_.load.add_(load);
  pass_.scores.add_(scores);
  pass_.tokens.add_(tokens);
  return pass_;
}

// The sums of a whole model are complete when its loss is asked for.
void LoadBalance::add_once() const {
  if (form_ != Form::whole_model || !add_ranks || added_ || !pass_.load.defined()) return;
  added_ = true;
  add_ranks({pass_.load, pass_.scores, pass_.tokens});
}

Tensor LoadBalance::value() const {
  if (!pass_.load.defined()) return {};
  add_once();
  Tensor tokens = pass_.tokens.clamp_min(1);
  return (pass_.load * pass_.scores).sum() *
         (coefficient_ * static_cast<double>(pass_.load.numel()) / static_cast<double>(active_)) /
         tokens.square();
}

Tensor LoadBalance::gradient(const Pass& pass) const {
  add_once();
  double factor =
      coefficient_ * scale_ * static_cast<double>(pass.load.numel()) / static_cast<double>(active_);
  return pass.load * factor / pass.tokens.clamp_min(1).square();
}

RouterImpl::RouterImpl(const MoeConfig& config, const at::TensorOptions& options)
    : config_(config) {
  int64_t experts = config.n_routed_experts;
  weight = register_parameter("weight", at::empty({experts, config.dim}, options));
  if (config.router_bias) bias = register_parameter("bias", at::empty({experts}, options));
  if (config.has_score_correction_bias())
    e_score_correction_bias =
        register_buffer("e_score_correction_bias", at::zeros({experts}, options.dtype(at::kFloat)));
  if (config.aux_loss_coeff > 0)
    load_balance =
        std::make_shared<LoadBalance>(config.aux_loss_coeff, LoadBalance::Form::each_layer);
  load_ = at::zeros({experts}, at::TensorOptions().dtype(at::kLong));
  if (weight.is_meta()) return;
  c10::NoGradGuard no_grad;
  weight.normal_(0, config.initializer_range);
  if (bias.defined()) bias.zero_();
}

RouterImpl::~RouterImpl() = default;

// `kept`: the logits where the first run under activation checkpointing has made them.
Tensor RouterImpl::project(const Tensor& x, const Tensor& kept) {
  at::DeviceType device = x.device().type();
  at::ScalarType dtype = config_.gate_precision ? *config_.gate_precision
                         : at::autocast::is_autocast_enabled(device)
                             ? at::autocast::get_autocast_dtype(device)
                             : x.scalar_type();
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  Tensor in = x.to(dtype), w = weight.to(dtype);
  std::optional<Tensor> b = bias.defined() ? std::optional<Tensor>(bias.to(dtype)) : std::nullopt;
  if (kept.defined()) return KnownProduct::apply(in, w, b, kept);
  return at::linear(in, w, b);
}

// `given`: the scores that weights are made of; undefined where those are made of the logits.
Tensor RouterImpl::select(const Tensor& logits, const Tensor& given) const {
  c10::NoGradGuard no_grad;
  bool plain = config_.score_func == ScoreFunction::softmax;
  Tensor scores = given.defined() ? given.detach() : wide(logits);
  bool corrected = e_score_correction_bias.defined() && !plain;
  if (corrected) scores = scores + e_score_correction_bias;
  switch (config_.score_func) {
    case ScoreFunction::softmax:
    case ScoreFunction::sqrtsoftplus:
      break;
    case ScoreFunction::softmax_with_bias:
      scores = limit_groups(scores, config_, /*top_two=*/true, /*to_infinity=*/false);
      break;
    case ScoreFunction::sigmoid_with_bias:
      scores = limit_groups(scores, config_, /*top_two=*/true, /*to_infinity=*/true);
      break;
    case ScoreFunction::sigmoid:
      scores = limit_groups(scores, config_, /*top_two=*/corrected, /*to_infinity=*/false);
      break;
  }
  return std::get<1>(scores.topk(config_.n_activated_experts, -1));
}

void RouterImpl::add_load(const Tensor& load) {
  if (load_.device() != load.device()) load_ = load_.to(load.device());
  load_.add_(load);
}

// Adds to the load and to the auxiliary loss's sums.
LoadBalance::Pass RouterImpl::count(const Tensor& logits, const Tensor& given,
                                    const Tensor& indices, const std::optional<Tensor>& mask) {
  bool balance = load_balance != nullptr &&
                 (is_training() || load_balance->form() == LoadBalance::Form::whole_model);
  if (!is_training() && !balance) return {};
  c10::NoGradGuard no_grad;
  Tensor load = loads_of(indices, mask, config_.n_routed_experts);
  if (is_training()) add_load(load);
  if (!balance) return {};
  Tensor scores = given.defined() ? given.detach() : scores_of(logits, config_.score_func);
  if (mask) scores = scores * mask->unsqueeze(1).to(scores.scalar_type());
  const Tensor sums = wide(scores.sum(0));
  const at::ScalarType dtype = sums.scalar_type();
  Tensor tokens = mask ? mask->sum().to(dtype)
                       : at::scalar_tensor(static_cast<double>(indices.size(0)),
                                           indices.options().dtype(dtype));
  return load_balance->add(load.to(dtype), sums, tokens, config_.n_activated_experts);
}

Routing RouterImpl::forward(const Tensor& x, const std::optional<Tensor>& mask) {
  Routing out = in_turns ? evenly(x, mask) : scored(x, mask);
  if (mask) {
    Tensor masked = mask->logical_not().unsqueeze(1);
    out.weights = out.weights.masked_fill(masked, 0);
    auto masked_indices = [&]() -> std::vector<Tensor> {
      return {out.indices, out.indices.masked_fill(masked, -1)};
    };
    // The same tensor in the second run, by which a dispatcher knows that nothing has changed.
    std::vector<Tensor> kept = once_under_recompute(masked_indices);
    if (!kept[0].is_alias_of(out.indices)) kept = masked_indices();
    out.indices = kept[1];
  }
  return out;
}

Routing RouterImpl::evenly(const Tensor& x, const std::optional<Tensor>& mask) {
  int64_t tokens = x.size(0), active = config_.n_activated_experts;
  Tensor indices = once_under_recompute([&]() -> std::vector<Tensor> {
    Tensor in_turn = at::arange(tokens * active, x.options().dtype(at::kLong))
                         .remainder_(config_.n_routed_experts)
                         .view({tokens, active});
    if (is_training()) add_load(loads_of(in_turn, mask, config_.n_routed_experts));
    return {in_turn};
  })[0];
  at::ScalarType dtype = config_.router_weights_fp32 ? at::kFloat : x.scalar_type();
  Tensor weights =
      at::full({tokens, active}, 1.0 / static_cast<double>(active), x.options().dtype(dtype));
  // Parameters get gradients of zero: strategies wait for the gradients of all parameters.
  for (const Tensor& p : {weight, bias})
    if (p.defined()) weights = weights + (p.sum() * 0).to(dtype);
  return {weights, indices};
}

Routing RouterImpl::scored(const Tensor& x, const std::optional<Tensor>& mask) {
  bool after_selection =
      config_.score_func == ScoreFunction::softmax && !config_.softmax_before_topk;
  auto scores_for = [&](const Tensor& of) {
    return after_selection ? Tensor() : scores_of(of, config_.score_func);
  };
  Tensor logits, scores, indices;
  std::vector<Tensor> kept = once_under_recompute([&]() -> std::vector<Tensor> {
    logits = project(x, {});
    scores = scores_for(logits);
    indices = select(logits, scores);
    LoadBalance::Pass pass = count(logits, scores, indices, mask);
    return {indices, logits.detach(), pass.load, pass.scores, pass.tokens};
  });
  if (!logits.defined()) {  // the second run
    logits = project(x, route_again ? Tensor() : kept[1]);
    scores = scores_for(logits);
    indices = route_again ? select(logits, scores) : kept[0];
  }
  Tensor weights = after_selection ? wide(logits).gather(1, indices).softmax(-1) : scores;
  if (config_.router_weight_uses_score_correction_bias &&
      config_.score_func == ScoreFunction::sigmoid && e_score_correction_bias.defined())
    weights = weights + e_score_correction_bias;
  bool normalise = config_.norm_topk_prob && config_.n_activated_experts > 1;
  if (!after_selection && scores.is_cpu() && scores.scalar_type() == at::kFloat) {
    weights = TakeSelected::apply(weights, indices, normalise, config_.route_scale);
  } else {
    if (!after_selection) weights = weights.gather(1, indices);
    if (normalise) weights = weights / (weights.sum(-1, true) + 1e-20);
    if (config_.route_scale != 1) weights = weights * config_.route_scale;
  }
  if (!config_.router_weights_fp32) weights = weights.to(x.scalar_type());
  if (kept[2].defined() && c10::GradMode::is_enabled()) {
    if (!scores.defined()) scores = scores_of(logits, config_.score_func);
    weights = with_load_balance(weights, scores, load_balance, {kept[2], kept[3], kept[4]},
                                mask ? *mask : Tensor());
  }
  return {weights, indices};
}

void RouterImpl::reset_load() { load_.zero_(); }

void RouterImpl::update_bias(const Tensor& load) {
  auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::bad_module,
                "the router's score correction bias is not updated: " + what);
  };
  if (!e_score_correction_bias.defined())
    refuse("it has none; set gate_bias_update_factor above 0");
  if (config_.gate_bias_update_factor <= 0) refuse("gate_bias_update_factor is 0");
  if (!is_training() || !weight.requires_grad()) refuse("the router is not being trained");
  c10::NoGradGuard no_grad;
  Tensor counts = load.to(e_score_correction_bias.device(), at::kDouble);
  if (load.is_cpu() && load.sum().item<double>() <= 0)
    refuse("no load was recorded since the last update");
  e_score_correction_bias.add_((counts.mean() - counts).sign() * config_.gate_bias_update_factor);
}

}  // namespace meshwright
