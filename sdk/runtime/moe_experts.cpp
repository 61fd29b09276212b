// The experts of one rank as grouped matrix products: one autograd node, whatever their number (spec 7.2).
#include <ATen/autocast_mode.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>

#include "linear_product.h"
#include "meshwright/error.h"
#include "meshwright/moe.h"
#include "moe_activation.h"

namespace meshwright {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Counts = std::vector<int64_t>;

// Rows of each expert: f(expert, first row, rows), without those of none.
template <class F>
void each_expert(const Counts& counts, F f) {
  int64_t begin = 0;
  for (size_t e = 0; e < counts.size(); ++e) {
    if (counts[e] > 0) f(static_cast<int64_t>(e), begin, counts[e]);
    begin += counts[e];
  }
}

// One call for all experts: bfloat16 on CUDA, rows of 16 bytes.
bool in_one_call(const Tensor& a, const Tensor& weights) {
  return a.is_cuda() && a.scalar_type() == at::kBFloat16 && weights.scalar_type() == at::kBFloat16 && a.size(0) > 0 &&
         weights.size(1) % 8 == 0 && weights.size(2) % 8 == 0;
}

Tensor ends(const Counts& counts, at::Device device) {
  std::vector<int32_t> out;
  int64_t end = 0;
  for (int64_t n : counts) out.push_back(static_cast<int32_t>(end += n));
  return at::tensor(out, at::TensorOptions().dtype(at::kInt)).to(device);
}

// a [N, k], weights [E, k, m] (as they lie, or transposed) to [N, m].
Tensor grouped_product(const Tensor& a, const Tensor& weights, const Counts& counts) {
  if (in_one_call(a, weights)) return at::_grouped_mm(a.contiguous(), weights, ends(counts, a.device()));
  Tensor out = at::empty({a.size(0), weights.size(2)}, a.options());
  each_expert(counts, [&](int64_t e, int64_t begin, int64_t rows) {
    detail::product_into(out.narrow(0, begin, rows), a.narrow(0, begin, rows), weights.select(0, e).t());
  });
  return out;
}

// a [N, k], b [N, m]: the products a^T b of each expert's rows, [E, k, m]; zeros where it has none.
Tensor grouped_outer(const Tensor& a, const Tensor& b, const Counts& counts, const Tensor& like) {
  Tensor out;
  if (in_one_call(a, like))
    out = at::_grouped_mm(a.t(), b.contiguous(), ends(counts, a.device()));
  else
    out = at::empty(like.sizes(), like.options());
  for (size_t e = 0; e < counts.size(); ++e)
    if (counts[e] == 0) out.select(0, static_cast<int64_t>(e)).zero_();
  if (!in_one_call(a, like))
    each_expert(counts, [&](int64_t e, int64_t begin, int64_t rows) {
      detail::product_into(out.select(0, e), a.narrow(0, begin, rows).t(), b.narrow(0, begin, rows).t());
    });
  return out;
}

void add_biases(const Tensor& rows, const Tensor& biases, const Tensor& weights, const Counts& counts) {
  each_expert(counts, [&](int64_t e, int64_t begin, int64_t n) {
    Tensor bias = biases.select(0, e);
    if (weights.defined())
      rows.narrow(0, begin, n).add_((weights.narrow(0, begin, n).unsqueeze(1) * bias).to(rows.scalar_type()));
    else
      rows.narrow(0, begin, n).add_(bias);
  });
}

Tensor bias_gradient(const Tensor& grad, const Counts& counts, const Tensor& like) {
  Tensor out = at::zeros(like.sizes(), like.options());
  each_expert(counts, [&](int64_t e, int64_t begin, int64_t n) { out.select(0, e).copy_(grad.narrow(0, begin, n).sum(0)); });
  return out;
}

// y = w (act(x W1 + b1) W2 + b2). The weight stands between the products or behind them, which differs in rounding alone: the gradients
// are the same.
struct Experts : torch::autograd::Function<Experts> {
  static Tensor forward(AutogradContext* context, const Tensor& given_tokens, const Tensor& weights, const Tensor& first,
                        const Tensor& second, const std::optional<Tensor>& given_first_bias, const std::optional<Tensor>& given_second_bias,
                        const Counts& counts, const MoeConfig& config) {
    Tensor tokens = given_tokens.contiguous(), first_bias = given_first_bias.value_or(Tensor()),
           second_bias = given_second_bias.value_or(Tensor());
    ActivationShape shape = detail::activation_shape(config);
    Tensor h = grouped_product(tokens, first, counts);
    if (first_bias.defined()) add_biases(h, first_bias, {}, counts);
    Tensor y;
    if (config.apply_router_weight_after_down) {
      y = grouped_product(detail::activate(shape, h, {}), second, counts);
      if (second_bias.defined()) add_biases(y, second_bias, {}, counts);
      y = (y * weights.unsqueeze(1)).to(h.scalar_type());
    } else {
      y = grouped_product(detail::activate(shape, h, weights), second, counts);
      if (second_bias.defined()) add_biases(y, second_bias, weights, counts);
    }
    context->save_for_backward({tokens, weights, first, second, first_bias, second_bias, h});
    context->saved_data["counts"] = counts;
    context->saved_data["kind"] = static_cast<int64_t>(shape.kind);
    context->saved_data["numbers"] = std::vector<double>{shape.alpha, shape.limit, shape.swiglu_limit};
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    c10::NoGradGuard no_grad;
    variable_list saved = context->get_saved_variables();
    const Tensor &tokens = saved[0], &weights = saved[1], &first = saved[2], &second = saved[3], &first_bias = saved[4],
                 &second_bias = saved[5], &h = saved[6];
    Counts counts = context->saved_data["counts"].toIntVector();
    std::vector<double> numbers = context->saved_data["numbers"].toDoubleVector();
    ActivationShape shape{static_cast<ExpertActivation>(context->saved_data["kind"].toInt()), numbers[0], numbers[1], numbers[2]};
    Tensor grad = grads[0].contiguous(), to_tokens, to_first, to_second, to_first_bias, to_second_bias;
    auto middle = detail::activate_backward(shape, h, weights, grouped_product(grad, second.transpose(1, 2), counts));
    if (context->needs_input_grad(3)) to_second = grouped_outer(middle.weighted, grad, counts, second);
    if (second_bias.defined()) {
      Tensor rows = at::zeros(grad.sizes(), grad.options());
      add_biases(rows, second_bias, {}, counts);
      middle.to_weights = middle.to_weights + (rows * grad).sum(1).to(middle.to_weights.scalar_type());
      to_second_bias = bias_gradient(grad * weights.unsqueeze(1).to(grad.scalar_type()), counts, second_bias);
    }
    if (context->needs_input_grad(2)) to_first = grouped_outer(tokens, middle.to_h, counts, first);
    if (first_bias.defined()) to_first_bias = bias_gradient(middle.to_h, counts, first_bias);
    if (context->needs_input_grad(0)) to_tokens = grouped_product(middle.to_h, first.transpose(1, 2), counts);
    return {to_tokens, middle.to_weights, to_first, to_second, to_first_bias, to_second_bias, Tensor(), Tensor()};
  }
};

}  // namespace

GroupedExpertsImpl::GroupedExpertsImpl(const MoeConfig& config, const at::TensorOptions& options) : config_(config) {
  int64_t experts = config.n_routed_experts, width = config.expert_width(), inner = config.moe_inter_dim;
  int64_t both = detail::activation_shape(config).gated() ? 2 * inner : inner;
  gate_and_up_projs = register_parameter("gate_and_up_projs", at::empty({experts, width, both}, options));
  down_projs = register_parameter("down_projs", at::empty({experts, inner, width}, options));
  if (config.expert_bias) {
    gate_up_proj_bias = register_parameter("gate_up_proj_bias", at::empty({experts, both}, options));
    down_proj_bias = register_parameter("down_proj_bias", at::empty({experts, width}, options));
  }
  if (gate_and_up_projs.is_meta()) return;
  c10::NoGradGuard no_grad;
  for (const Tensor& weight : {gate_and_up_projs, down_projs}) weight.normal_(0, config.initializer_range);
  for (const Tensor& bias : {gate_up_proj_bias, down_proj_bias})
    if (bias.defined()) bias.zero_();
}

GroupedExpertsImpl::~GroupedExpertsImpl() = default;

Tensor GroupedExpertsImpl::forward(const Tensor& tokens, const std::vector<int64_t>& counts, const Tensor& weights) {
  int64_t rows = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  if (static_cast<int64_t>(counts.size()) != experts() || rows != tokens.size(0) || rows != weights.numel())
    throw Error(ErrorCode::bad_module, "experts got " + std::to_string(tokens.size(0)) + " tokens and " + std::to_string(weights.numel()) +
                                           " weights for " + std::to_string(counts.size()) + " counts whose sum is " +
                                           std::to_string(rows) + ", and there are " + std::to_string(experts()) + " experts here");
  at::DeviceType device = tokens.device().type();
  at::ScalarType dtype = at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device) : tokens.scalar_type();
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  auto cast = [&](const Tensor& t) { return t.to(dtype); };
  auto cast_bias = [&](const Tensor& t) { return t.defined() ? std::optional<Tensor>(t.to(dtype)) : std::nullopt; };
  return Experts::apply(cast(tokens), weights.contiguous(), cast(gate_and_up_projs), cast(down_projs), cast_bias(gate_up_proj_bias),
                        cast_bias(down_proj_bias), counts, config_);
}

}  // namespace meshwright
