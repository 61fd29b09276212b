// The experts of one rank as grouped matrix products: one autograd node, whatever their number (spec 7.2).
#include <ATen/autocast_mode.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <numeric>

#include "early_gradients.h"
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

// The products of some tokens: those of one expert, or of all in one call, which ATen offers for bfloat16 and rows of 16 bytes.
struct Piece {
  int64_t expert = -1;  // -1: all
  int64_t begin = 0, rows = 0;
  Tensor ends;         // of all: the row behind each expert's last, [E] int32
  int64_t padded = 0;  // rows with zeros behind them, which come out as zeros

  Tensor of(const Tensor& t) const { return t.defined() ? t.narrow(0, begin, rows) : t; }
  // The same with the zeros.
  Tensor with_zeros(const Tensor& t) const {
    if (!t.defined() || padded == rows) return of(t);
    std::vector<int64_t> sizes = t.sizes().vec();
    sizes[0] = padded;
    Tensor out = at::empty(sizes, t.options());
    out.narrow(0, 0, rows).copy_(of(t));
    out.narrow(0, rows, padded - rows).zero_();
    return out;
  }
  // a [padded, k], weights [E, k, m] as they lie or transposed: [padded, m].
  Tensor times(const Tensor& a, const Tensor& weights) const {
    if (expert < 0) return at::_grouped_mm(a.contiguous(), weights, ends);
    return detail::product(a, weights.select(0, expert).t());
  }
  // Into the rows of `out`, [N, m].
  void times_into(const Tensor& out, const Tensor& a, const Tensor& weights) const { of(out).copy_(times(a, weights).narrow(0, 0, rows)); }
  // a^T b of each expert's rows into out [E, k, m]. Nothing is written for experts without rows.
  void outer_into(const Tensor& out, const Tensor& a, const Tensor& b) const {
    if (expert < 0)
      out.copy_(at::_grouped_mm(a.contiguous().t(), b.contiguous(), ends));
    else
      detail::product_into(out.select(0, expert), a.t(), b.t());
  }
};

std::vector<Piece> pieces_of(const Counts& counts, const Tensor& tokens, const Tensor& first, const Tensor& second) {
  std::vector<Piece> out;
  auto fits = [](const Tensor& t) { return t.scalar_type() == at::kBFloat16 && t.size(-1) % 8 == 0; };
  if (tokens.size(0) > 0 && fits(tokens) && fits(first) && fits(second) && second.size(1) % 8 == 0) {
    std::vector<int32_t> ends;
    int64_t end = 0;
    for (int64_t n : counts) ends.push_back(static_cast<int32_t>(end += n));
    return {{-1, 0, end, at::tensor(ends, at::TensorOptions().dtype(at::kInt)).to(tokens.device()), end}};
  }
  int64_t multiple = detail::product_multiple(tokens);
  each_expert(counts, [&](int64_t e, int64_t begin, int64_t rows) {
    out.push_back({e, begin, rows, {}, (rows + multiple - 1) / multiple * multiple});
  });
  return out;
}

void clear_unused(const Tensor& gradients, const Counts& counts) {
  for (size_t e = 0; e < counts.size(); ++e)
    if (counts[e] == 0) gradients.select(0, static_cast<int64_t>(e)).zero_();
}

// Adds each expert's bias to its rows, times their weights where those are given. `rows`: of the piece.
void add_biases(const Tensor& rows, const Tensor& biases, const Tensor& weights, const Piece& piece, const Counts& counts) {
  auto add = [&](int64_t e, int64_t begin, int64_t n) {
    Tensor bias = biases.select(0, e), to = rows.narrow(0, begin, n);
    if (weights.defined())
      to.add_((weights.narrow(0, begin, n).unsqueeze(1) * bias).to(rows.scalar_type()));
    else
      to.add_(bias);
  };
  if (piece.expert >= 0)
    add(piece.expert, 0, piece.rows);
  else
    each_expert(counts, add);
}

// Each expert's rows added up into its row of `sums`.
void sum_rows(const Tensor& rows, const Tensor& sums, const Piece& piece, const Counts& counts) {
  auto sum = [&](int64_t e, int64_t begin, int64_t n) { sums.select(0, e).copy_(rows.narrow(0, begin, n).sum(0)); };
  if (piece.expert >= 0)
    sum(piece.expert, 0, piece.rows);
  else
    each_expert(counts, sum);
}

struct Listener : torch::CustomClassHolder {
  detail::InputGradients tell;
};

// y = w (act(x W1 + b1) W2 + b2). The weight stands between the products or behind them, which differs in rounding alone: the gradients
// are the same. What is between the products stays in pieces, so that nothing is put together that is taken apart again.
struct Experts : torch::autograd::Function<Experts> {
  static constexpr size_t kSaved = 5;  // what is saved before the rows and products of the pieces

  static Tensor forward(AutogradContext* context, const Tensor& given_tokens, const Tensor& weights, const Tensor& first,
                        const Tensor& second, const std::optional<Tensor>& given_first_bias, const std::optional<Tensor>& given_second_bias,
                        const Counts& counts, const MoeConfig& config) {
    Tensor tokens = given_tokens.contiguous(), first_bias = given_first_bias.value_or(Tensor()),
           second_bias = given_second_bias.value_or(Tensor());
    ActivationShape shape = detail::activation_shape(config);
    bool after = config.apply_router_weight_after_down;
    variable_list saved = {weights, first, second, first_bias, second_bias};
    Tensor y = at::empty({tokens.size(0), second.size(2)}, tokens.options());
    for (const Piece& piece : pieces_of(counts, tokens, first, second)) {
      Tensor x = piece.with_zeros(tokens), h = piece.times(x, first);
      if (first_bias.defined()) add_biases(h.narrow(0, 0, piece.rows), first_bias, {}, piece, counts);
      piece.times_into(y, detail::activate(shape, h, after ? Tensor() : piece.with_zeros(weights)), second);
      saved.insert(saved.end(), {x, h});
    }
    if (second_bias.defined()) add_biases(y, second_bias, after ? Tensor() : weights, {}, counts);
    if (after) y = (y * weights.unsqueeze(1)).to(tokens.scalar_type());
    context->save_for_backward(saved);
    if (detail::InputGradients listener = detail::TellInputGradients::take()) {
      auto kept = c10::make_intrusive<Listener>();
      kept->tell = std::move(listener);
      context->saved_data["listener"] = c10::IValue::make_capsule(kept);
    }
    context->saved_data["counts"] = counts;
    context->saved_data["kind"] = static_cast<int64_t>(shape.kind);
    context->saved_data["numbers"] = std::vector<double>{shape.alpha, shape.limit, shape.swiglu_limit};
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    c10::NoGradGuard no_grad;
    variable_list saved = context->get_saved_variables();
    const Tensor &weights = saved[0], &first = saved[1], &second = saved[2], &first_bias = saved[3], &second_bias = saved[4];
    Counts counts = context->saved_data["counts"].toIntVector();
    std::vector<double> numbers = context->saved_data["numbers"].toDoubleVector();
    ActivationShape shape{static_cast<ExpertActivation>(context->saved_data["kind"].toInt()), numbers[0], numbers[1], numbers[2]};
    Tensor grad = grads[0].contiguous(), to_weights = at::empty(weights.sizes(), weights.options());
    auto wanted = [&](size_t input, const Tensor& like) {
      return context->needs_input_grad(input) ? at::empty(like.sizes(), like.options()) : Tensor();
    };
    Tensor to_tokens = wanted(0, grad), to_first = wanted(2, first), to_second = wanted(3, second), to_first_bias, to_second_bias;
    if (first_bias.defined()) to_first_bias = at::zeros(first_bias.sizes(), first_bias.options());
    // First what others wait for, then the parameters.
    std::vector<Piece> pieces = pieces_of(counts, grad, first, second);
    std::vector<detail::ActivationGradients> middles;
    variable_list outs;
    for (const Piece& piece : pieces) {
      outs.push_back(piece.with_zeros(grad));
      middles.push_back(detail::activate_backward(shape, saved[kSaved + 2 * middles.size() + 1], piece.with_zeros(weights),
                                                  piece.times(outs.back(), second.transpose(1, 2))));
      piece.of(to_weights).copy_(middles.back().to_weights.narrow(0, 0, piece.rows));
      if (to_tokens.defined()) piece.times_into(to_tokens, middles.back().to_h, first.transpose(1, 2));
    }
    if (second_bias.defined()) {
      Tensor rows = at::zeros(grad.sizes(), grad.options());
      add_biases(rows, second_bias, {}, {}, counts);
      to_weights.add_((rows * grad).sum(1).to(to_weights.scalar_type()));
      to_second_bias = at::zeros(second_bias.sizes(), second_bias.options());
      sum_rows(grad * weights.unsqueeze(1).to(grad.scalar_type()), to_second_bias, {}, counts);
    }
    auto listener = context->saved_data.find("listener");
    if (listener != context->saved_data.end() && to_tokens.defined())
      c10::static_intrusive_pointer_cast<Listener>(listener->second.toCapsule())->tell(to_tokens, to_weights);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Piece& piece = pieces[i];
      if (to_second.defined()) piece.outer_into(to_second, middles[i].weighted, outs[i]);
      if (to_first.defined()) piece.outer_into(to_first, saved[kSaved + 2 * i], middles[i].to_h);
      if (first_bias.defined()) sum_rows(middles[i].to_h.narrow(0, 0, piece.rows), to_first_bias, piece, counts);
      middles[i] = {};
      outs[i] = Tensor();
    }
    for (const Tensor& t : {to_first, to_second})
      if (t.defined()) clear_unused(t, counts);
    return {to_tokens, to_weights, to_first, to_second, to_first_bias, to_second_bias, Tensor(), Tensor()};
  }
};

}  // namespace

namespace detail {

namespace {
thread_local InputGradients current_listener;
}

TellInputGradients::TellInputGradients(InputGradients listener) { current_listener = std::move(listener); }
TellInputGradients::~TellInputGradients() { current_listener = nullptr; }
InputGradients TellInputGradients::take() { return std::exchange(current_listener, nullptr); }

}  // namespace detail

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
