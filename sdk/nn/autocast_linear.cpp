#include "autocast_linear.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include "linear_product.h"
#include "meshwright/nn/layers.h"
#include "sdk/base/cast_ahead.h"
#include "sdk/base/own_kernels.h"

namespace meshwright::detail {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

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
    const Tensor grad = grads[0].reshape({-1, weight.size(0)});
    Tensor to_x, to_weight, to_bias;
    if (context->needs_input_grad(0))
      to_x = at::mm(grad, cast).view(context->saved_data["sizes"].toIntVector());
    if (context->needs_input_grad(1)) {
      const Tensor rows = x.reshape({-1, x.size(-1)});
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

Tensor shared_cast(const Tensor& x, at::ScalarType dtype) {
  if (x.scalar_type() != at::kFloat || !c10::GradMode::is_enabled() || !x.requires_grad())
    return x.to(dtype);
  if (Tensor next = next_reader(x, dtype); next.defined()) return next;
  Tensor out = SharedCast::apply(x, dtype)[0];
  last = {WeakTensor(x.getIntrusivePtr()), WeakTensor(out.getIntrusivePtr()), x._version(), 1};
  return out;
}

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

}  // namespace meshwright
