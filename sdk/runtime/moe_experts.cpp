// The experts of one rank as grouped matrix products: one autograd node, whatever their number (spec 7.2).
#include <ATen/autocast_mode.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "early_gradients.h"
#include "linear_product.h"
#include "meshwright/error.h"
#include "meshwright/moe.h"
#include "moe_activation.h"
#include "moe_dispatch.h"

namespace meshwright {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Counts = std::vector<int64_t>;

// Which rows belong to which expert.
struct Layout {
  Counts counts;
  bool padded;

  int64_t taken(size_t e) const { return detail::taken_rows(counts[e], padded); }
  int64_t rows() const {
    int64_t sum = 0;
    for (size_t e = 0; e < counts.size(); ++e) sum += taken(e);
    return sum;
  }
  // f(expert, first row, rows, and with the zeros behind them), without experts of none.
  template <class F>
  void each(F f) const {
    int64_t begin = 0;
    for (size_t e = 0; e < counts.size(); begin += taken(e++))
      if (counts[e] > 0) f(static_cast<int64_t>(e), begin, counts[e], taken(e));
  }
  // The row behind each expert's last, [E] int32.
  Tensor ends(at::Device device) const {
    std::vector<int32_t> out;
    int64_t end = 0;
    for (size_t e = 0; e < counts.size(); ++e) out.push_back(static_cast<int32_t>(end += taken(e)));
    return at::tensor(out, at::TensorOptions().dtype(at::kInt)).to(device);
  }
};

// The products of all tokens with their experts' weights: in one call, which ATen offers for bfloat16 and rows of 16 bytes, or one by one.
class Products {
 public:
  Products(const Layout& layout, const Tensor& tokens, const Tensor& first, const Tensor& second) : layout_(layout) {
    auto fits = [](const Tensor& t) { return t.scalar_type() == at::kBFloat16 && t.size(-1) % 8 == 0; };
    if (tokens.size(0) > 0 && fits(tokens) && fits(first) && fits(second) && second.size(1) % 8 == 0) ends_ = layout.ends(tokens.device());
  }
  // a [N, k], weights [E, k, m] as they lie or transposed: [N, m].
  Tensor times(const Tensor& a, const Tensor& weights) const {
    if (ends_.defined()) return at::_grouped_mm(a.contiguous(), weights, ends_);
    Tensor out = at::empty({a.size(0), weights.size(2)}, a.options());
    layout_.each([&](int64_t e, int64_t begin, int64_t, int64_t taken) {
      detail::product_into(out.narrow(0, begin, taken), a.narrow(0, begin, taken), weights.select(0, e));
    });
    return out;
  }
  // a^T b of each expert's rows into out [E, k, m]; zeros for experts without rows.
  void outer_into(const Tensor& out, const Tensor& a, const Tensor& b) const {
    if (ends_.defined())
      out.copy_(at::_grouped_mm(a.contiguous().t(), b.contiguous(), ends_));
    else
      layout_.each([&](int64_t e, int64_t begin, int64_t, int64_t taken) {
        detail::product_into(out.select(0, e), a.narrow(0, begin, taken).t(), b.narrow(0, begin, taken));
      });
    for (size_t e = 0; e < layout_.counts.size(); ++e)
      if (layout_.counts[e] == 0) out.select(0, static_cast<int64_t>(e)).zero_();
  }

 private:
  const Layout& layout_;
  Tensor ends_;
};

// Adds each expert's bias to its rows, times their weights where those are given.
void add_biases(const Tensor& rows, const Tensor& biases, const Tensor& weights, const Layout& layout) {
  layout.each([&](int64_t e, int64_t begin, int64_t n, int64_t) {
    Tensor bias = biases.select(0, e), to = rows.narrow(0, begin, n);
    if (weights.defined())
      to.add_((weights.narrow(0, begin, n).unsqueeze(1) * bias).to(rows.scalar_type()));
    else
      to.add_(bias);
  });
}

// Each expert's rows added up: [E, width].
Tensor sums_of(const Tensor& rows, const Tensor& like, const Layout& layout) {
  Tensor out = at::zeros(like.sizes(), like.options());
  layout.each([&](int64_t e, int64_t begin, int64_t n, int64_t) { out.select(0, e).copy_(rows.narrow(0, begin, n).sum(0)); });
  return out;
}

struct Listener : torch::CustomClassHolder {
  detail::InputGradients tell;
};

// y = w (act(x W1 + b1) W2 + b2). The weight stands between the products or behind them, which differs in rounding alone: the gradients
// are the same.
struct Experts : torch::autograd::Function<Experts> {
  static Tensor forward(AutogradContext* context, const Tensor& given_tokens, const Tensor& weights, const Tensor& first,
                        const Tensor& second, const std::optional<Tensor>& given_first_bias, const std::optional<Tensor>& given_second_bias,
                        const Layout& layout, const MoeConfig& config) {
    Tensor tokens = given_tokens.contiguous(), first_bias = given_first_bias.value_or(Tensor()),
           second_bias = given_second_bias.value_or(Tensor());
    ActivationShape shape = detail::activation_shape(config);
    bool after = config.apply_router_weight_after_down;
    Products products(layout, tokens, first, second);
    Tensor h = products.times(tokens, first);
    if (first_bias.defined()) add_biases(h, first_bias, {}, layout);
    Tensor y = products.times(detail::activate(shape, h, after ? Tensor() : weights), second);
    if (second_bias.defined()) add_biases(y, second_bias, after ? Tensor() : weights, layout);
    if (after) y = (y * weights.unsqueeze(1)).to(tokens.scalar_type());
    context->save_for_backward({tokens, h, weights, first, second, first_bias, second_bias});
    if (detail::InputGradients listener = detail::TellInputGradients::take()) {
      auto kept = c10::make_intrusive<Listener>();
      kept->tell = std::move(listener);
      context->saved_data["listener"] = c10::IValue::make_capsule(kept);
    }
    context->saved_data["counts"] = layout.counts;
    context->saved_data["padded"] = layout.padded;
    context->saved_data["kind"] = static_cast<int64_t>(shape.kind);
    context->saved_data["numbers"] = std::vector<double>{shape.alpha, shape.limit, shape.swiglu_limit};
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    c10::NoGradGuard no_grad;
    variable_list saved = context->get_saved_variables();
    const Tensor &tokens = saved[0], &h = saved[1], &weights = saved[2], &first = saved[3], &second = saved[4], &first_bias = saved[5],
                 &second_bias = saved[6];
    Layout layout{context->saved_data["counts"].toIntVector(), context->saved_data["padded"].toBool()};
    std::vector<double> numbers = context->saved_data["numbers"].toDoubleVector();
    ActivationShape shape{static_cast<ExpertActivation>(context->saved_data["kind"].toInt()), numbers[0], numbers[1], numbers[2]};
    Tensor grad = grads[0].contiguous();
    Products products(layout, grad, first, second);
    // First what others wait for, then the parameters.
    detail::ActivationGradients middle = detail::activate_backward(shape, h, weights, products.times(grad, second.transpose(1, 2)));
    Tensor to_tokens, to_weights = middle.to_weights, to_second_bias;
    if (context->needs_input_grad(0)) to_tokens = products.times(middle.to_h, first.transpose(1, 2));
    if (second_bias.defined()) {
      Tensor rows = at::zeros(grad.sizes(), grad.options());
      add_biases(rows, second_bias, {}, layout);
      to_weights.add_((rows * grad).sum(1).to(to_weights.scalar_type()));
      to_second_bias = sums_of(grad * weights.unsqueeze(1).to(grad.scalar_type()), second_bias, layout);
    }
    auto listener = context->saved_data.find("listener");
    if (listener != context->saved_data.end() && to_tokens.defined())
      c10::static_intrusive_pointer_cast<Listener>(listener->second.toCapsule())->tell(to_tokens, to_weights);
    auto outer = [&](size_t input, const Tensor& like, const Tensor& a, const Tensor& b) {
      if (!context->needs_input_grad(input)) return Tensor();
      Tensor out = at::empty(like.sizes(), like.options());
      products.outer_into(out, a, b);
      return out;
    };
    Tensor to_second = outer(3, second, middle.weighted, grad), to_first = outer(2, first, tokens, middle.to_h);
    Tensor to_first_bias = first_bias.defined() ? sums_of(middle.to_h, first_bias, layout) : Tensor();
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

Tensor GroupedExpertsImpl::forward(const Tensor& tokens, const std::vector<int64_t>& counts, const Tensor& weights, bool padded) {
  Layout layout{counts, padded};
  int64_t rows = layout.rows();
  if (static_cast<int64_t>(counts.size()) != experts() || rows != tokens.size(0) || rows != weights.numel())
    throw Error(ErrorCode::bad_module, "experts got " + std::to_string(tokens.size(0)) + " tokens and " + std::to_string(weights.numel()) +
                                           " weights for " + std::to_string(counts.size()) + " counts that take " + std::to_string(rows) +
                                           " rows, and there are " + std::to_string(experts()) + " experts here");
  at::DeviceType device = tokens.device().type();
  at::ScalarType dtype = at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device) : tokens.scalar_type();
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  auto cast = [&](const Tensor& t) { return t.to(dtype); };
  auto cast_bias = [&](const Tensor& t) { return t.defined() ? std::optional<Tensor>(t.to(dtype)) : std::nullopt; };
  return Experts::apply(cast(tokens), weights.contiguous(), cast(gate_and_up_projs), cast(down_projs), cast_bias(gate_up_proj_bias),
                        cast_bias(down_proj_bias), layout, config_);
}

}  // namespace meshwright
