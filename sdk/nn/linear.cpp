// Linear: LibTorch's, with a faster matrix product where LibTorch's choice is slow.
#include "linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>
#include <dlfcn.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "attention_parts.h"
#include "few_rows.h"
#include "meshwright/nn/layers.h"
#include "sdk/base/cast_ahead.h"
#include "sdk/base/own_kernels.h"
#include "weight_gradients.h"

namespace meshwright::detail {

// Linear's products in 8-bit floats (Micikevicius et al. 2022), as torchao's tensorwise recipe has
// them: each matrix is multiplied by the number that brings its largest element to the largest of
// the format, e4m3 for inputs and weights, e5m2 for gradients; sums are wider.

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kMultiple = 16;
constexpr at::ScalarType kValues = at::kFloat8_e4m3fn, kGradients = at::kFloat8_e5m2;

double largest(at::ScalarType type) {
  return type == kValues ? double{std::numeric_limits<c10::Float8_e4m3fn>::max()}
                         : double{std::numeric_limits<c10::Float8_e5m2>::max()};
}

struct Scaled {
  Tensor values;   // [rows, columns], each row in one piece
  Tensor inverse;  // what they have to be multiplied by
};

Scaled scaled(const Tensor& x, at::ScalarType type) {
  constexpr double kLeast = 1e-12;  // of zeros alone
  const Tensor most =
      at::linalg_vector_norm(x, std::numeric_limits<double>::infinity(), {}, false, at::kFloat);
  const Tensor scale = most.clamp_min(kLeast).reciprocal_().mul_(largest(type));
  return {x.to(at::kFloat).mul(scale).to(type).contiguous(), scale.reciprocal()};
}

Scaled transposed(const Scaled& x) { return {x.values.t().contiguous(), x.inverse}; }

// a [m, k] times b [n, k] transposed. Forward may add up in fewer bits, as the formats' authors do.
// LibTorch's product on the CPU takes each element by itself; one of the same numbers in float32 is
// hundreds of times as fast.
Tensor multiplied(const Scaled& a, const Scaled& b, at::ScalarType out, bool fast) {
  if (a.values.is_cpu())
    return product(a.values.to(at::kFloat), b.values.to(at::kFloat))
        .mul_(a.inverse)
        .mul_(b.inverse)
        .to(out);
  return at::_scaled_mm(a.values, b.values.t(), a.inverse, b.inverse, {}, {}, out, fast);
}

// With zeros below: the sum over rows is one over a multiple of 16.
Tensor padded(const Tensor& x) {
  const int64_t more = (kMultiple - x.size(0) % kMultiple) % kMultiple;
  return more == 0 ? x : at::constant_pad_nd(x, std::array<int64_t, 4>{0, 0, 0, more});
}

struct Float8Linear : torch::autograd::Function<Float8Linear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias) {
    context->save_for_backward({x, weight});
    context->saved_data["bias"] = bias.has_value();
    keep_queue(*context);
    Tensor y =
        multiplied(scaled(detail::rows_of(x), kValues), scaled(weight, kValues), x.scalar_type(),
                   /*fast=*/true);
    if (bias) y.add_(*bias);
    return with_sizes_of(x, y);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], rows = detail::rows_of(grads[0]);
    Tensor to_x, to_weight, to_bias;
    const Scaled g = scaled(rows, kGradients);
    if (context->needs_input_grad(0))
      to_x = multiplied(g, transposed(scaled(weight, kValues)), x.scalar_type(), /*fast=*/false)
                 .view(x.sizes());
    if (context->needs_input_grad(1))
      to_weight = now_or_later(*context, weight,
                               [g = g.values, inverse = g.inverse, x = detail::rows_of(x.detach()),
                                type = weight.scalar_type()] {
                                 return multiplied(transposed({padded(g), inverse}),
                                                   transposed(scaled(padded(x), kValues)), type,
                                                   /*fast=*/false);
                               });
    if (context->saved_data["bias"].toBool() && context->needs_input_grad(2)) to_bias = rows.sum(0);
    return {to_x, to_weight, to_bias};
  }
};

}  // namespace

// Whether the kernels take the sizes of x [.., k] and weight [n, k]: multiples of 16, some rows.
bool fits_float8(const Tensor& x, const Tensor& weight) {
  return x.dim() >= 2 && x.numel() > 0 && weight.size(0) > 0 && weight.size(0) % kMultiple == 0 &&
         weight.size(1) % kMultiple == 0;
}

// x weight^T + bias in the dtype of x, or that of autocast.
Tensor float8_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  return Float8Linear::apply(as_autocast(x), as_autocast(weight),
                             bias ? std::optional<Tensor>(as_autocast(*bias)) : std::nullopt);
}

// Linear under autocast on a device, with the numbers of LibTorch's: fewer casts.

// x weight^T + bias in the dtype of autocast. The weight's gradient goes where its unit keeps it
// (weight_gradients.h).
at::Tensor autocast_linear(const at::Tensor& x, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias);

namespace {

// The same memory, but for autograd no view.
Tensor same_memory(const Tensor& x) {
  at::AutoDispatchBelowADInplaceOrView not_a_view;
  return at::alias(x);
}

// As many results of one memory as readers may come; those that never do have no gradient.
struct SharedCast : torch::autograd::Function<SharedCast> {
  static variable_list forward(AutogradContext* context, const Tensor& x, at::ScalarType dtype) {
    context->set_materialize_grads(false);
    variable_list out{x.to(dtype)};
    while (out.size() < kernels::SumWide::kMost) out.push_back(same_memory(out[0]));
    return out;
  }
  static variable_list backward(AutogradContext*, const variable_list& grads) {
    variable_list parts;
    for (const Tensor& grad : grads)
      if (grad.defined()) parts.push_back(grad);
    return {parts.empty() ? Tensor() : sum(parts), Tensor()};
  }

 private:
  // In the order in which autograd would add them: the last reader's comes first.
  static Tensor sum(const variable_list& parts) {
    if (parts.size() > 1)
      if (auto own = OwnKernels::of(parts[0], {parts[0].numel()})) return sum(parts, *own);
    Tensor out = parts.back().to(at::kFloat);
    for (size_t i = parts.size() - 1; i-- > 0;) out.add_(parts[i]);
    return out;
  }
  static Tensor sum(const variable_list& given, const OwnKernels& own) {
    OwnKernels::refuse_second_derivative();
    Tensor out = at::empty(given[0].sizes(), given[0].options().dtype(at::kFloat));
    kernels::SumWide arguments{.parts = {},
                               .count = static_cast<int>(given.size()),
                               .out = out.mutable_data_ptr<float>(),
                               .size = out.numel()};
    variable_list parts;
    for (size_t i = 0; i < given.size(); ++i)
      arguments.parts[i] = parts.emplace_back(own.readable(given[i])).const_data_ptr();
    own.launch("sum_wide", ceil_divide(out.numel(), kernels::kBlock * 8), arguments);
    return out;
  }
};

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// The last cast of a thread, while a reader has it.
struct LastCast {
  std::optional<WeakTensor> from, to;
  int64_t version = 0;
  uint32_t readers = 0;
};
thread_local LastCast last;

Tensor next_reader(const Tensor& x, at::ScalarType dtype) {
  if (!last.from || last.from->_unsafe_get_target() != x.unsafeGetTensorImpl() ||
      last.from->expired() || last.version != x._version() ||
      last.readers == kernels::SumWide::kMost)
    return {};
  const Tensor first(last.to->lock());
  if (!first.defined() || first.scalar_type() != dtype) return {};
  Tensor out = same_memory(first.detach());
  torch::autograd::impl::set_gradient_edge(out, {first.grad_fn(), last.readers++});
  return out;
}

// The weight is given in both dtypes: `cast` is multiplied, `weight` has the gradient.
struct AutocastLinear : torch::autograd::Function<AutocastLinear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const Tensor& cast, const std::optional<Tensor>& bias) {
    context->save_for_backward({weight.requires_grad() ? x : Tensor(), weight, cast});
    context->saved_data["sizes"] = x.sizes();
    context->saved_data["bias"] = bias.has_value();
    return at::linear(x, cast, bias);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &cast = saved[2];
    const Tensor grad = detail::rows_of(grads[0]);
    Tensor to_x, to_weight, to_bias;
    if (context->needs_input_grad(0))
      to_x = at::mm(grad, cast).view(context->saved_data["sizes"].toIntVector());
    if (context->needs_input_grad(1)) {
      const Tensor rows = detail::rows_of(x);
      if (c10::GradMode::is_enabled()) {
        to_weight = at::mm(grad.t(), rows);
      } else if (!place_product(weight, grad.t(), rows)) {
        to_weight = at::empty(weight.sizes(), weight.options());
        product_into(to_weight, grad.t(), rows);
      }
    }
    if (context->saved_data["bias"].toBool() && context->needs_input_grad(3)) to_bias = grad.sum(0);
    return {to_x, to_weight, Tensor(), to_bias};
  }
};

}  // namespace

// x in `dtype`. Modules beside each other that read the same x share one cast, and its gradient is
// the float32 sum of theirs, in one pass.
Tensor shared_cast(const Tensor& x, at::ScalarType dtype) {
  if (x.scalar_type() != at::kFloat || !c10::GradMode::is_enabled() || !x.requires_grad())
    return x.to(dtype);
  if (Tensor next = next_reader(x, dtype); next.defined()) return next;
  Tensor out = SharedCast::apply(x, dtype)[0];
  last = {WeakTensor(x.getIntrusivePtr()), WeakTensor(out.getIntrusivePtr()), x._version(), 1};
  return out;
}

// Whether autocast_linear() takes them: on a device under autocast, the weight in float32.
bool autocasts(const Tensor& x, const Tensor& weight) {
  return x.is_cuda() && at::autocast::is_autocast_enabled(at::kCUDA) && x.dim() >= 2 &&
         x.is_floating_point() && x.scalar_type() != at::kDouble &&
         weight.scalar_type() == at::kFloat && weight.device() == x.device();
}

Tensor autocast_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(at::kCUDA);
  // Autocast keeps what it casts of a parameter for the other uses in its scope.
  auto cast = [&](const Tensor& t) { return at::autocast::cached_cast(dtype, t, at::kCUDA); };
  Tensor known = CastAhead::find(weight, dtype);
  if (!known.defined()) known = cast(weight).detach();
  return AutocastLinear::apply(shared_cast(x, dtype), weight, known,
                               bias ? std::optional(cast(*bias)) : std::nullopt);
}

}  // namespace meshwright::detail

namespace meshwright {

namespace {

thread_local const CastAhead* casts_ahead = nullptr;

// Those of a unit that is not gathered have none.
bool has_memory(const at::Tensor& weight) {
  return weight.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() != nullptr;
}

}  // namespace

CastAhead::CastAhead(const at::Tensor& x, const torch::nn::Module& module) : outer_(casts_ahead) {
  casts_ahead = this;
  if (!x.is_cuda() || !at::autocast::is_autocast_enabled(at::kCUDA) || !c10::GradMode::is_enabled())
    return;
  c10::NoGradGuard no_grad;
  const at::ScalarType type = at::autocast::get_autocast_dtype(at::kCUDA);
  cast(x, module, type);
  if (!casts_.empty()) at::_foreach_copy_(casts_, weights_);
}

// Module::modules() would make the names of all of them, in every forward.
void CastAhead::cast(const at::Tensor& x, const torch::nn::Module& module, at::ScalarType type) {
  const auto* linear = dynamic_cast<const LinearImpl*>(&module);
  if (linear != nullptr && detail::autocasts(x, linear->weight) && has_memory(linear->weight)) {
    weights_.push_back(linear->weight);
    casts_.push_back(at::empty_like(linear->weight, linear->weight.options().dtype(type)));
  }
  for (const auto& part : module.children()) cast(x, *part, type);
}

CastAhead::~CastAhead() { casts_ahead = outer_; }

at::Tensor CastAhead::find(const at::Tensor& weight, at::ScalarType type) {
  if (casts_ahead == nullptr) return {};
  const CastAhead& ahead = *casts_ahead;
  for (size_t i = 0; i < ahead.weights_.size(); ++i)
    if (ahead.weights_[i].is_same(weight) && ahead.casts_[i].scalar_type() == type)
      return ahead.casts_[i];
  return {};
}

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using LinearPointwise = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&,
                               std::string_view, c10::List<std::optional<at::Scalar>>,
                               std::optional<std::string_view>);

// LibTorch multiplies float32 matrices with MKL, which on AMD's processors uses half of their
// AVX-512. oneDNN, which LibTorch carries as well, uses all of it. Elsewhere the two are equally
// fast and LibTorch's choice stays.
const c10::TypedOperatorHandle<LinearPointwise>* onednn() {
  static const std::optional<c10::TypedOperatorHandle<LinearPointwise>> found = [] {
    std::optional<c10::TypedOperatorHandle<LinearPointwise>> out;
#if defined(__x86_64__)
    if (__builtin_cpu_is("amd") && __builtin_cpu_supports("avx512f"))
      if (auto handle = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""}))
        out = handle->typed<LinearPointwise>();
#endif
    return out;
  }();
  return found ? &*found : nullptr;
}

// The same library's product into memory that is there, which no operator offers: LibTorch exports
// the function without a header.
using ProductInto = void(const Tensor& a, const Tensor& b, const Tensor& out, float beta,
                         float alpha);
ProductInto* onednn_into() {
  static auto* const found =
      onednn() == nullptr
          ? nullptr
          : reinterpret_cast<ProductInto*>(
                ::dlsym(RTLD_DEFAULT, "_ZN2at6native13mkldnn_matmulERKNS_6TensorES3_S3_ff"));
  return found;
}

// Below this many multiplications the ten microseconds of a oneDNN call are not won back.
constexpr int64_t kWorthwhile = int64_t{1} << 21;

}  // namespace

namespace detail {

namespace {

// To [.., n].
bool fast_product(const Tensor& a, const Tensor& b, int64_t n) {
  return a.is_cpu() && a.scalar_type() == at::kFloat && b.scalar_type() == at::kFloat &&
         onednn() != nullptr && a.size(0) * a.size(1) * n >= kWorthwhile &&
         !c10::GradMode::is_enabled();
}

}  // namespace

Tensor product(const Tensor& a, const Tensor& b) {
  if (takes_few_rows(a, b)) return few_rows_product(a, b, std::nullopt);
  if (!fast_product(a, b, b.size(0))) return at::mm(a, b.t());
  at::AutoDispatchBelowAutograd below;
  return onednn()->call(a, b, std::nullopt, "none", c10::List<std::optional<at::Scalar>>(), "");
}

Tensor with_sizes_of(const Tensor& x, const Tensor& y) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = y.size(1);
  return y.view(sizes);
}

bool product_is_compiled(const Tensor& a) {
  return a.is_cpu() && a.scalar_type() == at::kFloat && onednn() != nullptr;
}

void product_into(Tensor out, const Tensor& a, const Tensor& b, double scale, bool add) {
  auto* into = fast_product(a, b, b.size(1)) ? onednn_into() : nullptr;
  if (out.scalar_type() != a.scalar_type())
    at::addmm_out(out, out, a, b, out.scalar_type(), add ? 1 : 0, scale);
  else if (into != nullptr)
    into(a, b, out, add ? 1 : 0, static_cast<float>(scale));
  else if (scale == 1 && !add)
    at::mm_out(out, a, b);
  else
    at::addmm_out(out, out, a, b, add ? 1 : 0, scale);
}

bool place_product(const Tensor& weight, const Tensor& a, const Tensor& b) {
  GradientKeeper* keeper = c10::GradMode::is_enabled() ? nullptr : gradient_keeper(weight);
  const std::optional<GradientPlace> kept = keeper != nullptr ? keeper->place() : std::nullopt;
  if (kept) product_into(kept->into, a, b, kept->scale, kept->add);
  return kept.has_value();
}

}  // namespace detail

namespace {

using detail::product;

struct FastLinear : torch::autograd::Function<FastLinear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias, bool fast) {
    context->save_for_backward({x, weight});
    context->saved_data["bias"] = bias.has_value();
    detail::keep_queue(*context);
    // What is put off alone leaves the forward as LibTorch has it, to the bit.
    if (!fast) return at::linear(x, weight, bias);
    Tensor y = product(detail::rows_of(x), weight);
    if (bias) y.add_(*bias);
    return detail::with_sizes_of(x, y);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1];
    Tensor g = detail::rows_of(grads[0]), to_x, to_weight, to_bias;
    if (context->needs_input_grad(0)) to_x = detail::SharedInput::gradient(x, g, weight);
    if (context->needs_input_grad(1))
      to_weight = detail::gradient_of_weight(*context, weight, g, x);
    if (context->saved_data["bias"].toBool() && context->needs_input_grad(2)) to_bias = g.sum(0);
    return {to_x, to_weight, to_bias, Tensor()};
  }
};

}  // namespace

Tensor LinearImpl::forward(const Tensor& x) {
  if (float8 && detail::fits_float8(x, weight))
    return detail::float8_linear(x, weight,
                                 bias.defined() ? std::optional<Tensor>(bias) : std::nullopt);
  if (detail::autocasts(x, weight))
    return detail::autocast_linear(x, weight,
                                   bias.defined() ? std::optional<Tensor>(bias) : std::nullopt);
  if (detail::takes_few_rows(x, weight))
    return detail::with_sizes_of(
        x, detail::few_rows_product(detail::rows_of(x), weight,
                                    bias.defined() ? std::optional<Tensor>(bias) : std::nullopt));
  const bool plain = x.dim() >= 2 && x.scalar_type() == weight.scalar_type() &&
                     !at::autocast::is_autocast_enabled(x.device().type());
  const bool fast = plain && x.is_cpu() && weight.is_cpu() && x.scalar_type() == at::kFloat &&
                    x.numel() * weight.size(0) >= kWorthwhile && onednn() != nullptr;
  const bool puts_off = plain && weight.requires_grad() && weight.is_leaf() &&
                        detail::current_weight_gradients() != nullptr;
  // On a device each launch counts: whose gradient has a place to be written to, or whose input's
  // gradient others add to.
  const bool joins = plain && x.is_cuda() && c10::GradMode::is_enabled() &&
                     (x.requires_grad() || detail::has_gradient_keeper(weight));
  if (!fast && !puts_off && !joins) return torch::nn::LinearImpl::forward(x);
  return FastLinear::apply(joins ? detail::SharedInput::read(x) : x, weight,
                           bias.defined() ? std::optional<Tensor>(bias) : std::nullopt, fast);
}

namespace detail {

namespace {

// What a thread's last reader read, while its graph is there.
struct LastRead {
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  std::optional<Weak> from;
  int64_t version = 0;
  std::weak_ptr<SharedInput> node;
  bool is(const Tensor& x) const {
    return from && !from->expired() && from->_unsafe_get_target() == x.unsafeGetTensorImpl() &&
           version == x._version();
  }
};

LastRead& last_read() {
  thread_local LastRead kept;
  return kept;
}

}  // namespace

variable_list SharedInput::apply(variable_list&& grads) {
  sum = Tensor();
  Tensor out;
  for (const Tensor& grad : grads)
    if (grad.defined()) out = out.defined() ? out + grad : grad;
  return {out};
}

Tensor SharedInput::read(const Tensor& x) {
  if (!c10::GradMode::is_enabled() || !x.requires_grad()) return x;
  std::shared_ptr<SharedInput> node = last_read().node.lock();
  if (!node || !last_read().is(x)) {
    node = std::shared_ptr<SharedInput>(new SharedInput(), torch::autograd::deleteNode);
    node->set_next_edges(torch::autograd::collect_next_edges(x));
    last_read() = {LastRead::Weak(x.getIntrusivePtr()), x._version(), node};
  }
  Tensor out;
  {
    at::AutoDispatchBelowADInplaceOrView not_a_view;
    out = at::alias(x);
  }
  // What changes x in place before its backward is told of, as anywhere.
  torch::autograd::impl::set_version_counter(out, torch::autograd::impl::version_counter(x));
  const uint32_t reader = node->add_input_metadata(out);
  torch::autograd::impl::set_gradient_edge(out, {node, reader});
  return out;
}

Tensor SharedInput::gradient(const Tensor& x, const Tensor& g, const Tensor& weight) {
  auto* node =
      c10::GradMode::is_enabled() ? nullptr : dynamic_cast<SharedInput*>(x.grad_fn().get());
  if (node == nullptr) return product(g, weight.t()).view(x.sizes());
  if (node->sum.defined()) {
    product_into(node->sum, g, weight, 1, /*add=*/true);
    return {};
  }
  node->sum = product(g, weight.t());
  return node->sum.view(x.sizes());
}

}  // namespace detail

}  // namespace meshwright
