// Linear: LibTorch's, with a faster matrix product where LibTorch's choice is slow.
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>
#include <dlfcn.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

#include "autocast_linear.h"
#include "float8.h"
#include "gradient_place.h"
#include "linear_product.h"
#include "meshwright/nn/layers.h"
#include "shared_input.h"
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

}  // namespace meshwright
