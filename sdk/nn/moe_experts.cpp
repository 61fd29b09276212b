// The experts of one rank as grouped matrix products: one autograd node, whatever their number
// (semantics 10.1).
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "meshwright/error.h"
#include "meshwright/nn/moe.h"
#include "moe_parts.h"
#include "sdk/base/kernels/arguments.h"
#include "sdk/base/own_kernels.h"
#include "sdk/nn/linear.h"
#include "weight_gradients.h"

namespace meshwright::detail {

// Products of float32 experts on a device in one launch, where LibTorch multiplies expert by expert
// and asks the host for their sizes.

namespace {

using at::Tensor;
using kernels::GroupedProduct;

// Multiplications and additions of an expert in some 20 us of a device's float32.
constexpr double kMostWork = 1 << 30;

int64_t tiles_of(int64_t size) { return ceil_divide(size, GroupedProduct::kTile); }

void launch_grouped(const GroupedProduct& product, const Tensor& like, int64_t stripes) {
  const auto own = OwnKernels::of(like, {4});
  TORCH_INTERNAL_ASSERT(own, "grouped products were there before");
  own->launch("grouped_product", stripes * tiles_of(product.width), product,
              GroupedProduct::kFloats * static_cast<int64_t>(sizeof(float)));
}

}  // namespace

// Whether tokens [N, d] of experts with weights like these [E, ., .] are multiplied so: where one
// expert's product takes about as long as a launch and the host's wait do. Larger ones are left to
// cuBLAS, and so are all where float32 products may be rounded.
bool has_grouped_products(const Tensor& tokens, const Tensor& first, const Tensor& second) {
  if (!tokens.is_cuda() || tokens.size(0) == 0 || first.size(0) == 0) return false;
  for (const Tensor* t : {&tokens, &first, &second})
    if (t->scalar_type() != at::kFloat) return false;
  if (!first.is_contiguous() || !second.is_contiguous()) return false;
  const double rows = static_cast<double>(tokens.size(0)) / static_cast<double>(first.size(0)),
               most = static_cast<double>(
                   std::max(first.size(1) * first.size(2), second.size(1) * second.size(2)));
  return 2 * rows * most <= kMostWork && !at::globalContext().allowTF32CuBLAS() &&
         OwnKernels::of(tokens, {4}).has_value();
}

// out [N, m] = a [N, k] times weights [E, k, m] of each row's expert, as they lie or transposed;
// bounds [E + 1] int32 on the device. Rows behind the last bound are left as they are.
void grouped_rows_into(const Tensor& out, const Tensor& given, const Tensor& weights,
                       const Tensor& bounds) {
  const Tensor a = given.contiguous();
  const int64_t experts = weights.size(0), inner = weights.size(1), width = weights.size(2);
  TORCH_INTERNAL_ASSERT(weights.stride(0) == inner * width && out.is_contiguous());
  launch_grouped({.a = a.const_data_ptr<float>(),
                  .b = weights.const_data_ptr<float>(),
                  .out = out.mutable_data_ptr<float>(),
                  .bounds = bounds.const_data_ptr<int32_t>(),
                  .rows = a.size(0),
                  .width = width,
                  .inner = inner,
                  .b_inner = weights.stride(1),
                  .b_column = weights.stride(2),
                  .groups = static_cast<int>(experts)},
                 a, a.size(0) / GroupedProduct::kTile + experts);
}

// a^T b of each expert's rows to out.into [E, k, m]; zeros for one of none.
void grouped_sums_into(const GradientPlace& out, const Tensor& given_a, const Tensor& given_b,
                       const Tensor& bounds) {
  const Tensor a = given_a.contiguous(), b = given_b.contiguous();
  const int64_t experts = out.into.size(0);
  if (out.into.scalar_type() != at::kFloat) {
    const GradientPlace wide{at::empty(out.into.sizes(), a.options()), out.scale};
    grouped_sums_into(wide, a, b, bounds);
    if (out.add)
      out.into.add_(wide.into);
    else
      out.into.copy_(wide.into);
    return;
  }
  launch_grouped({.a = a.const_data_ptr<float>(),
                  .b = b.const_data_ptr<float>(),
                  .out = out.into.mutable_data_ptr<float>(),
                  .bounds = bounds.const_data_ptr<int32_t>(),
                  .rows = a.size(0),
                  .height = a.size(1),
                  .width = b.size(1),
                  .b_inner = b.size(1),
                  .b_column = 1,
                  .groups = static_cast<int>(experts),
                  .sums_rows = 1,
                  .scale = static_cast<float>(out.scale),
                  .add = out.add ? 1 : 0},
                 a, experts * tiles_of(a.size(1)));
}

}  // namespace meshwright::detail

namespace meshwright {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Counts = std::vector<int64_t>;

// A thread-local scratch buffer [n, width] on the CPU: each call on this thread reuses the memory
// of the last one, which is still in the cache.
Tensor scratch(size_t slot, int64_t n, int64_t width, const at::TensorOptions& options) {
  if (!options.device().is_cpu()) return at::empty({n, width}, options);
  c10::InferenceMode no_inference(false);  // later calls may be part of training
  thread_local std::array<Tensor, 3> kept;
  Tensor& flat = kept[slot];
  if (!flat.defined() || flat.dtype() != options.dtype() || flat.numel() < n * width)
    flat = at::empty({n * width + n * width / 4}, options);
  return flat.narrow(0, 0, n * width).view({n, width});
}

// Rows that are multiplied in one call: the rows of one expert, or all rows. For all rows ATen has
// a call where they are bfloat16 of whole 16 bytes, and kernels of our own one for small float32
// experts on a device.
struct Piece {
  int64_t expert;  // -1: all
  int64_t begin, taken;
  Tensor of(const Tensor& t) const { return t.defined() ? t.narrow(0, begin, taken) : t; }
};

// Which rows belong to which expert, and their products with the experts' weights.
class Layout {
 public:
  Layout(Counts counts, bool padded) : counts_(std::move(counts)), padded_(padded) {
    for (int64_t n : counts_) rows_ += detail::taken_rows(n, padded_);
  }
  // The host does not know the counts: all rows are multiplied in one call.
  Layout(const Tensor& bounds, int64_t rows)
      : padded_(false), rows_(rows), bounds_(bounds), all_bounds_(bounds) {}
  const Tensor& bounds() const { return bounds_; }
  const Counts& counts() const { return counts_; }
  bool padded() const { return padded_; }
  int64_t rows() const { return rows_; }

  // Whether all rows of these sizes are multiplied in one call.
  static bool fits(at::ScalarType type, const Tensor& tokens, const Tensor& first,
                   const Tensor& second) {
    auto whole = [](int64_t size) { return size % 8 == 0; };
    if (type == at::kFloat) return detail::has_grouped_products(tokens, first, second);
    return type == at::kBFloat16 && tokens.size(0) > 0 && whole(tokens.size(-1)) &&
           whole(first.size(-1)) && whole(second.size(-1)) && whole(second.size(1));
  }
  std::vector<Piece> pieces(const Tensor& tokens, const Tensor& first, const Tensor& second) {
    if (bounds_.defined()) return {{-1, 0, rows_}};
    if (rows_ > 0 && first.scalar_type() == tokens.scalar_type() &&
        second.scalar_type() == tokens.scalar_type() &&
        fits(tokens.scalar_type(), tokens, first, second)) {
      std::vector<int32_t> bounds{0};
      int64_t end = 0;
      for (int64_t n : counts_)
        bounds.push_back(static_cast<int32_t>(end += detail::taken_rows(n, padded_)));
      all_bounds_ = at::tensor(bounds, at::TensorOptions().dtype(at::kInt)).to(tokens.device());
      return {{-1, 0, rows_}};
    }
    std::vector<Piece> out;
    each([&](int64_t e, int64_t begin, int64_t n) {
      out.push_back({e, begin, detail::taken_rows(n, padded_)});
    });
    return out;
  }
  // a: rows of the piece, weights [E, k, m] as they lie or transposed: [rows, m], the piece's part
  // of `whole` [N, m] (made when undefined).
  Tensor times(const Piece& piece, const Tensor& a, const Tensor& weights, Tensor& whole) const {
    if (piece.expert < 0 && !by_own_kernel(a))
      return whole = at::_grouped_mm(a.contiguous(), weights, ends());
    if (!whole.defined()) whole = detail::empty_rows(rows_, weights.size(2), a.options());
    Tensor out = piece.of(whole);
    if (piece.expert < 0) {
      detail::grouped_rows_into(out, a, weights, all_bounds_);
      return out;
    }
    detail::product_into(out, a, weights.select(0, piece.expert));
    return out;
  }
  // The same, in the scratch buffer that the next call overwrites.
  Tensor times_for_now(const Piece& piece, const Tensor& a, const Tensor& weights) const {
    if (piece.expert < 0) {
      Tensor whole;
      return times(piece, a, weights, whole);
    }
    Tensor out = scratch(0, piece.taken, weights.size(2), a.options());
    detail::product_into(out, a, weights.select(0, piece.expert));
    return out;
  }
  bool in_one_call() const { return all_bounds_.defined(); }
  // Whether outer_into() writes where it is told, and adds to what is there.
  bool writes_in_place(const Tensor& like) const { return !in_one_call() || by_own_kernel(like); }
  // a^T b of the piece into out [E, k, m]. For experts without rows nothing is written by single
  // products, and zeros by the call for all: what that gives for them differs between devices.
  void outer_into(const Piece& piece, const detail::GradientPlace& out, const Tensor& a,
                  const Tensor& b) const {
    if (piece.expert < 0 && by_own_kernel(a)) {
      detail::grouped_sums_into(out, a, b, all_bounds_);
    } else if (bounds_.defined()) {
      Tensor used = ends().gt(bounds_.narrow(0, 0, experts())).view({-1, 1, 1});
      Tensor into = out.into;
      at::where_out(into, used, at::_grouped_mm(a.contiguous().t(), b.contiguous(), ends()),
                    at::scalar_tensor(0, out.into.options()));
    } else if (piece.expert < 0) {
      out.into.copy_(at::_grouped_mm(a.contiguous().t(), b.contiguous(), ends()));
      clear_unused(out.into);
    } else {
      detail::product_into(out.into.select(0, piece.expert), a.t(), b, out.scale, out.add);
    }
  }
  void clear_unused(const Tensor& gradients) const {
    for (size_t e = 0; e < counts_.size(); ++e)
      if (counts_[e] == 0) gradients.select(0, static_cast<int64_t>(e)).zero_();
  }
  // Adds to the piece's rows the biases of their experts, times their weights where those are
  // given.
  void add_biases(const Piece& piece, const Tensor& rows, const Tensor& biases,
                  const Tensor& weights) const {
    each([&](int64_t e, int64_t begin, int64_t n) {
      if (piece.expert >= 0 && piece.expert != e) return;
      Tensor bias = biases.select(0, e), to = rows.narrow(0, begin - piece.begin, n);
      if (weights.defined())
        to.add_(
            (weights.narrow(0, begin - piece.begin, n).unsqueeze(1) * bias).to(rows.scalar_type()));
      else
        to.add_(bias);
    });
  }
  // Each expert's rows of the piece added up into its row of `sums`.
  void sum_into(const Piece& piece, const Tensor& sums, const Tensor& rows) const {
    each([&](int64_t e, int64_t begin, int64_t n) {
      if (piece.expert < 0 || piece.expert == e)
        sums.select(0, e).copy_(rows.narrow(0, begin - piece.begin, n).sum(0));
    });
  }

 private:
  int64_t experts() const { return all_bounds_.size(0) - 1; }
  // The row behind each expert's last, [E] int32.
  Tensor ends() const { return all_bounds_.narrow(0, 1, experts()); }
  bool by_own_kernel(const Tensor& rows) const {
    return in_one_call() && rows.scalar_type() == at::kFloat;
  }
  // f(expert, first row, rows without zeros), without experts of none.
  template <class F>
  void each(F f) const {
    int64_t begin = 0;
    for (size_t e = 0; e < counts_.size(); begin += detail::taken_rows(counts_[e++], padded_))
      if (counts_[e] > 0) f(static_cast<int64_t>(e), begin, counts_[e]);
  }

  Counts counts_;
  bool padded_;
  int64_t rows_ = 0;
  Tensor bounds_;      // ExpertOrder::bounds, in place of counts
  Tensor all_bounds_;  // these or made from counts, where all are multiplied in one call
};

struct Listener : torch::CustomClassHolder {
  detail::InputGradients tell;
};

// y = w (act(x W1 + b1) W2 + b2). The weight stands between the products or behind them, which
// differs in rounding alone: the gradients are the same.
struct Experts : torch::autograd::Function<Experts> {
  static Tensor forward(AutogradContext* context, const Tensor& given_tokens, const Tensor& weights,
                        const Tensor& first, const Tensor& second,
                        const std::optional<Tensor>& given_first_bias,
                        const std::optional<Tensor>& given_second_bias, Layout layout,
                        const MoeConfig& config) {
    Tensor tokens = given_tokens.contiguous(), first_bias = given_first_bias.value_or(Tensor()),
           second_bias = given_second_bias.value_or(Tensor()), h, y;
    detail::ActivationShape shape = detail::activation_shape(config);
    bool after = config.apply_router_weight_after_down;
    for (const Piece& piece : layout.pieces(tokens, first, second)) {
      Tensor middle = layout.times(piece, piece.of(tokens), first, h), w = piece.of(weights);
      if (first_bias.defined()) layout.add_biases(piece, middle, first_bias, {});
      Tensor into = detail::activates_into(shape, tokens)
                        ? scratch(0, piece.taken, second.size(1), tokens.options())
                        : Tensor();
      Tensor active = detail::activate(shape, middle, after ? Tensor() : w, into);
      Tensor out = layout.times(piece, active, second, y);
      if (second_bias.defined()) layout.add_biases(piece, out, second_bias, after ? Tensor() : w);
    }
    if (!y.defined()) y = at::empty({0, second.size(2)}, tokens.options());
    if (after) y = (y * weights.unsqueeze(1)).to(tokens.scalar_type());
    context->save_for_backward(
        {tokens, h, weights, first, second, first_bias, second_bias, layout.bounds()});
    if (detail::InputGradients listener = detail::TellInputGradients::take()) {
      auto kept = c10::make_intrusive<Listener>();
      kept->tell = std::move(listener);
      context->saved_data["listener"] = c10::IValue::make_capsule(kept);
    }
    // Of parameters themselves: a copy in another dtype has its gradient from autograd alone.
    if (first.is_leaf() && second.is_leaf()) detail::keep_queue(*context);
    context->saved_data["counts"] = layout.counts();
    context->saved_data["padded"] = layout.padded();
    context->saved_data["kind"] = static_cast<int64_t>(shape.kind);
    context->saved_data["numbers"] =
        std::vector<double>{shape.alpha, shape.limit, shape.swiglu_limit};
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    c10::NoGradGuard no_grad;
    variable_list saved = context->get_saved_variables();
    const Tensor &tokens = saved[0], &h = saved[1], &weights = saved[2], &first = saved[3],
                 &second = saved[4], &first_bias = saved[5], &second_bias = saved[6];
    Layout layout = saved[7].defined() ? Layout(saved[7], tokens.size(0))
                                       : Layout(context->saved_data["counts"].toIntVector(),
                                                context->saved_data["padded"].toBool());
    std::vector<double> numbers = context->saved_data["numbers"].toDoubleVector();
    detail::ActivationShape shape{
        static_cast<ExpertActivation>(context->saved_data["kind"].toInt()), numbers[0], numbers[1],
        numbers[2]};
    Tensor grad = grads[0].contiguous(), to_tokens,
           to_weights = at::empty(weights.sizes(), weights.options());
    auto zeros_like = [](const Tensor& t) {
      return t.defined() ? at::zeros(t.sizes(), t.options()) : Tensor();
    };
    Tensor to_first_bias = zeros_like(first_bias), to_second_bias = zeros_like(second_bias);
    // First what others wait for, then the parameters.
    std::vector<Piece> pieces = layout.pieces(grad, first, second);
    std::vector<detail::ActivationGradients> middles;
    Tensor to_h, weighted;
    const std::shared_ptr<detail::WeightGradients> queue = detail::kept_queue(*context);
    if (detail::activates_into(shape, grad) && !queue) {  // what is put off outlives this call
      to_h = scratch(1, layout.rows(), first.size(2), grad.options());
      weighted = scratch(2, layout.rows(), second.size(1), grad.options());
    }
    for (const Piece& piece : pieces) {
      Tensor g = piece.of(grad), w = piece.of(weights), to_w = piece.of(to_weights);
      middles.push_back(detail::activate_backward(
          shape, piece.of(h), w, layout.times_for_now(piece, g, second.transpose(1, 2)),
          {piece.of(to_h), to_w, piece.of(weighted)}));
      if (!middles.back().to_weights.is_same(to_w)) to_w.copy_(middles.back().to_weights);
      if (context->needs_input_grad(0))
        layout.times(piece, middles.back().to_h, first.transpose(1, 2), to_tokens);
      if (second_bias.defined()) {
        Tensor rows = at::zeros(g.sizes(), g.options());
        layout.add_biases(piece, rows, second_bias, {});
        to_w.add_((rows * g).sum(1).to(to_w.scalar_type()));
      }
    }
    if (context->needs_input_grad(0) && !to_tokens.defined())
      to_tokens = at::empty(tokens.sizes(), tokens.options());
    auto listener = context->saved_data.find("listener");
    if (listener != context->saved_data.end() && to_tokens.defined())
      c10::static_intrusive_pointer_cast<Listener>(listener->second.toCapsule())
          ->tell(to_tokens, to_weights);
    // factors(i): a and b of piece i, whose a^T b is its part of the gradient.
    auto outer = [&](size_t input, const Tensor& parameter, auto factors) {
      if (!context->needs_input_grad(input)) return Tensor();
      if (queue) {
        std::vector<std::pair<Tensor, Tensor>> of_pieces;
        for (size_t i = 0; i < pieces.size(); ++i) of_pieces.push_back(factors(i));
        queue->put_off(parameter, [layout, pieces, of_pieces, sizes = parameter.sizes().vec(),
                                   options = parameter.options()] {
          const detail::GradientPlace out{at::empty(sizes, options.requires_grad(false))};
          if (!layout.in_one_call()) layout.clear_unused(out.into);
          for (size_t i = 0; i < pieces.size(); ++i)
            layout.outer_into(pieces[i], out, of_pieces[i].first, of_pieces[i].second);
          return out.into;
        });
        return Tensor();
      }
      detail::GradientKeeper* keeper =
          layout.writes_in_place(grad) ? detail::gradient_keeper(parameter) : nullptr;
      std::optional<detail::GradientPlace> kept =
          keeper != nullptr ? keeper->place() : std::nullopt;
      detail::GradientPlace out =
          kept ? *kept : detail::GradientPlace{at::empty(parameter.sizes(), parameter.options())};
      if (!out.add && !layout.in_one_call()) layout.clear_unused(out.into);
      for (size_t i = 0; i < pieces.size(); ++i) {
        auto [a, b] = factors(i);
        layout.outer_into(pieces[i], out, a, b);
      }
      return kept ? Tensor() : out.into;
    };
    Tensor to_second = outer(
        3, second, [&](size_t i) { return std::pair(middles[i].weighted, pieces[i].of(grad)); });
    Tensor to_first =
        outer(2, first, [&](size_t i) { return std::pair(pieces[i].of(tokens), middles[i].to_h); });
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Piece& piece = pieces[i];
      if (first_bias.defined()) layout.sum_into(piece, to_first_bias, middles[i].to_h);
      if (second_bias.defined())
        layout.sum_into(piece, to_second_bias,
                        piece.of(grad) * piece.of(weights).unsqueeze(1).to(grad.scalar_type()));
    }
    return {to_tokens,     to_weights,     to_first, to_second,
            to_first_bias, to_second_bias, Tensor(), Tensor()};
  }
};

}  // namespace

namespace detail {

namespace {
thread_local InputGradients current_listener;
}

TellInputGradients::TellInputGradients(InputGradients listener) {
  current_listener = std::move(listener);
}
TellInputGradients::~TellInputGradients() { current_listener = nullptr; }
InputGradients TellInputGradients::take() { return std::exchange(current_listener, nullptr); }

}  // namespace detail

GroupedExpertsImpl::GroupedExpertsImpl(const MoeConfig& config, const at::TensorOptions& options)
    : config_(config) {
  int64_t experts = config.n_routed_experts, width = config.expert_width(),
          inner = config.moe_inter_dim;
  int64_t both = detail::activation_shape(config).gated() ? 2 * inner : inner;
  gate_and_up_projs =
      register_parameter("gate_and_up_projs", at::empty({experts, width, both}, options));
  down_projs = register_parameter("down_projs", at::empty({experts, inner, width}, options));
  if (config.expert_bias) {
    gate_up_proj_bias =
        register_parameter("gate_up_proj_bias", at::empty({experts, both}, options));
    down_proj_bias = register_parameter("down_proj_bias", at::empty({experts, width}, options));
  }
  if (gate_and_up_projs.is_meta()) return;
  c10::NoGradGuard no_grad;
  for (const Tensor& weight : {gate_and_up_projs, down_projs})
    weight.normal_(0, config.initializer_range);
  for (const Tensor& bias : {gate_up_proj_bias, down_proj_bias})
    if (bias.defined()) bias.zero_();
}

GroupedExpertsImpl::~GroupedExpertsImpl() = default;

namespace {

// The dtype in which experts compute.
at::ScalarType computed_in(const Tensor& tokens) {
  at::DeviceType device = tokens.device().type();
  return at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device)
                                                   : tokens.scalar_type();
}

Tensor run(GroupedExpertsImpl& of, const MoeConfig& config, const Tensor& tokens,
           const Tensor& weights, Layout layout) {
  const at::ScalarType dtype = computed_in(tokens);
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  auto cast = [&](const Tensor& t) { return t.to(dtype); };
  auto cast_bias = [&](const Tensor& t) {
    return t.defined() ? std::optional<Tensor>(t.to(dtype)) : std::nullopt;
  };
  return Experts::apply(cast(tokens), weights.contiguous(), cast(of.gate_and_up_projs),
                        cast(of.down_projs), cast_bias(of.gate_up_proj_bias),
                        cast_bias(of.down_proj_bias), std::move(layout), config);
}

}  // namespace

bool GroupedExpertsImpl::fits_bounds(const Tensor& tokens) const {
  return !config_.expert_bias &&
         Layout::fits(computed_in(tokens), tokens, gate_and_up_projs, down_projs);
}

Tensor GroupedExpertsImpl::forward(const Tensor& tokens, const Tensor& bounds,
                                   const Tensor& weights) {
  const int64_t rows = tokens.size(0);
  if (bounds.scalar_type() != at::kInt || bounds.numel() != experts() + 1 ||
      rows != weights.numel())
    throw Error(ErrorCode::bad_module, "experts got " + std::to_string(rows) + " tokens and " +
                                           std::to_string(weights.numel()) + " weights for " +
                                           std::to_string(bounds.numel()) +
                                           " bounds, and there are " + std::to_string(experts()) +
                                           " experts here");
  if (fits_bounds(tokens)) return run(*this, config_, tokens, weights, Layout(bounds, rows));
  Layout layout(detail::counts_of(bounds), /*padded=*/false);
  const int64_t used = layout.rows();
  Tensor y =
      run(*this, config_, tokens.narrow(0, 0, used), weights.narrow(0, 0, used), std::move(layout));
  return used == rows ? y : at::constant_pad_nd(y, {0, 0, 0, rows - used});
}

Tensor GroupedExpertsImpl::forward(const Tensor& tokens, const std::vector<int64_t>& counts,
                                   const Tensor& weights, bool padded) {
  Layout layout(counts, padded);
  int64_t rows = layout.rows();
  if (static_cast<int64_t>(counts.size()) != experts() || rows != tokens.size(0) ||
      rows != weights.numel())
    throw Error(ErrorCode::bad_module,
                "experts got " + std::to_string(tokens.size(0)) + " tokens and " +
                    std::to_string(weights.numel()) + " weights for " +
                    std::to_string(counts.size()) + " counts that take " + std::to_string(rows) +
                    " rows, and there are " + std::to_string(experts()) + " experts here");
  return run(*this, config_, tokens, weights, std::move(layout));
}

}  // namespace meshwright
