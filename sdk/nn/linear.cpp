// Linear: LibTorch's, with a faster matrix product where LibTorch's choice is slow.
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>
#include <dlfcn.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/custom_class.h>

#include <memory>
#include <optional>
#include <utility>

#include "autocast_linear.h"
#include "float8.h"
#include "gradient_place.h"
#include "linear_product.h"
#include "meshwright/nn/layers.h"
#include "sdk/base/add_low_rank.h"
#include "weight_gradients.h"

namespace meshwright {
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

// Modules beside each other that read the same x: each has a result of its own here, and the
// products of their backward add up into one gradient, without a pass over memory for each sum.
struct SharedInput : torch::autograd::Node {
  Tensor sum;  // in a backward, what the readers so far gave; the first of them returned it
  std::string name() const override { return "MeshwrightSharedInput"; }
  variable_list apply(variable_list&& grads) override {
    sum = Tensor();
    Tensor out;
    for (const Tensor& grad : grads)
      if (grad.defined()) out = out.defined() ? out + grad : grad;
    return {out};
  }

  // x for one more reader.
  static Tensor read(const Tensor& x) {
    if (!c10::GradMode::is_enabled() || !x.requires_grad()) return x;
    std::shared_ptr<SharedInput> node = last().node.lock();
    if (!node || !last().is(x)) {
      node = std::shared_ptr<SharedInput>(new SharedInput(), torch::autograd::deleteNode);
      node->set_next_edges(torch::autograd::collect_next_edges(x));
      last() = {Last::Weak(x.getIntrusivePtr()), x._version(), node};
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
  // The gradient g weight of x as read() gave it; undefined where it went into another reader's.
  static Tensor gradient(const Tensor& x, const Tensor& g, const Tensor& weight) {
    auto* node =
        c10::GradMode::is_enabled() ? nullptr : dynamic_cast<SharedInput*>(x.grad_fn().get());
    if (node == nullptr) return product(g, weight.t()).view(x.sizes());
    if (node->sum.defined()) {
      detail::product_into(node->sum, g, weight, 1, /*add=*/true);
      return {};
    }
    node->sum = product(g, weight.t());
    return node->sum.view(x.sizes());
  }

 private:
  // What a thread's last reader read, while its graph is there.
  struct Last {
    using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
    std::optional<Weak> from;
    int64_t version = 0;
    std::weak_ptr<SharedInput> node;
    bool is(const Tensor& x) const {
      return from && !from->expired() && from->_unsafe_get_target() == x.unsafeGetTensorImpl() &&
             version == x._version();
    }
  };
  static Last& last() {
    thread_local Last kept;
    return kept;
  }
};

// Undefined where it went elsewhere.
Tensor gradient_of_weight(AutogradContext& context, const Tensor& weight, const Tensor& g,
                          const Tensor& x) {
  const Tensor rows = x.reshape({-1, x.size(-1)});
  if (detail::kept_queue(context) == nullptr) {
    if (g.is_cuda() && detail::place_product(weight, g.t(), rows)) return {};
    return product(g.t(), rows.t());
  }
  // Without their history, which would keep the graph alive.
  return detail::now_or_later(
      context, weight, [g = g.detach(), rows = rows.detach()] { return product(g.t(), rows.t()); });
}

struct FastLinear : torch::autograd::Function<FastLinear> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& bias, bool fast) {
    context->save_for_backward({x, weight});
    context->saved_data["bias"] = bias.has_value();
    detail::keep_queue(*context);
    // What is put off alone leaves the forward as LibTorch has it, to the bit.
    if (!fast) return at::linear(x, weight, bias);
    Tensor y = product(x.reshape({-1, x.size(-1)}), weight);
    if (bias) y.add_(*bias);
    return detail::with_sizes_of(x, y);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1];
    Tensor g = grads[0].reshape({-1, weight.size(0)}), to_x, to_weight, to_bias;
    if (context->needs_input_grad(0)) to_x = SharedInput::gradient(x, g, weight);
    if (context->needs_input_grad(1)) to_weight = gradient_of_weight(*context, weight, g, x);
    if (context->saved_data["bias"].toBool() && context->needs_input_grad(2)) to_bias = g.sum(0);
    return {to_x, to_weight, to_bias, Tensor()};
  }
};

// Whatever is scaled has r columns.
struct LowRank : torch::autograd::Function<LowRank> {
  static Tensor forward(AutogradContext* context, const Tensor& y, const Tensor& x,
                        const Tensor& in, const Tensor& out, double scale) {
    const Tensor h = narrowed(x, in, scale);
    context->save_for_backward({x, in, out, h});
    context->saved_data["scale"] = scale;
    detail::keep_queue(*context);
    // For autograd no view of y, and y itself has not changed: nobody reads it again.
    at::AutoDispatchBelowADInplaceOrView not_a_view;
    Tensor sum = at::alias(y);
    detail::product_into(sum.view({-1, out.size(0)}), h, out.t(), 1, /*add=*/true);
    return sum;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &in = saved[1], &out = saved[2];
    const double scale = context->saved_data["scale"].toDouble();
    const Tensor g = grads[0].reshape({-1, out.size(0)});
    Tensor to_y, to_x, to_in, to_out;
    if (context->needs_input_grad(0)) to_y = grads[0];
    if (context->needs_input_grad(1) || context->needs_input_grad(2)) {
      const Tensor u = product(g, out.t()).mul_(scale);
      if (context->needs_input_grad(1)) to_x = SharedInput::gradient(x, u, in);
      if (context->needs_input_grad(2)) to_in = gradient_of_weight(*context, in, u, x);
    }
    if (context->needs_input_grad(3)) {
      // What was saved has no history for a second derivative.
      const Tensor h = c10::GradMode::is_enabled() ? narrowed(x, in, scale) : saved[3];
      to_out = gradient_of_weight(*context, out, g, h);
    }
    return {to_y, to_x, to_in, to_out, Tensor()};
  }

 private:
  static Tensor narrowed(const Tensor& x, const Tensor& in, double scale) {
    return product(x.reshape({-1, x.size(-1)}), in).mul_(scale);
  }
};

}  // namespace

bool fits_low_rank(const Tensor& y, const Tensor& x, const Tensor& in, const Tensor& out) {
  const at::ScalarType type = y.scalar_type();
  return x.dim() >= 2 && x.numel() > 0 && y.numel() > 0 && y.is_contiguous() &&
         x.scalar_type() == type && in.scalar_type() == type && out.scalar_type() == type &&
         in.is_leaf() && out.is_leaf() && !at::autocast::is_autocast_enabled(x.device().type());
}

Tensor add_low_rank(const Tensor& y, const Tensor& x, const Tensor& in, const Tensor& out,
                    double scale) {
  return LowRank::apply(y, SharedInput::read(x), in, out, scale);
}

Tensor LinearImpl::forward(const Tensor& x) {
  if (float8 && detail::fits_float8(x, weight))
    return detail::float8_linear(x, weight,
                                 bias.defined() ? std::optional<Tensor>(bias) : std::nullopt);
  if (detail::autocasts(x, weight))
    return detail::autocast_linear(x, weight,
                                   bias.defined() ? std::optional<Tensor>(bias) : std::nullopt);
  const bool plain = x.dim() >= 2 && x.scalar_type() == weight.scalar_type() &&
                     !at::autocast::is_autocast_enabled(x.device().type());
  const bool fast = plain && x.is_cpu() && weight.is_cpu() && x.scalar_type() == at::kFloat &&
                    x.numel() * weight.size(0) >= kWorthwhile && onednn() != nullptr;
  const bool puts_off = plain && weight.requires_grad() && weight.is_leaf() &&
                        detail::current_weight_gradients() != nullptr;
  // Whose gradient has a place to be written to.
  const bool placed = plain && x.is_cuda() && detail::has_gradient_keeper(weight);
  if (!fast && !puts_off && !placed) return torch::nn::LinearImpl::forward(x);
  return FastLinear::apply(placed ? SharedInput::read(x) : x, weight,
                           bias.defined() ? std::optional<Tensor>(bias) : std::nullopt, fast);
}

}  // namespace meshwright
