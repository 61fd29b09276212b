// Adapters beside Linears: sdk/base/add_low_rank.h.
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "linear.h"
#include "sdk/base/add_low_rank.h"
#include "weight_gradients.h"

namespace meshwright {
namespace {

using at::Tensor;
using detail::product;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Below each other. Not saved for the backward, where it is made anew: a copy would outlive what a
// unit has gathered.
Tensor stacked(at::TensorList factors) {
  return factors.size() == 1 ? factors[0] : at::cat(factors, 0);
}

// x without what is dropped.
Tensor rest_of(const Tensor& x, const Tensor& dropped) {
  return dropped.defined() ? x.masked_fill(dropped, 0) : x;
}

// scale A x of each adapter that reads x, or what of it is not dropped. Whatever is scaled has r
// columns.
struct Narrowed : torch::autograd::Function<Narrowed> {
  static variable_list forward(AutogradContext* context, const Tensor& x, at::TensorList in,
                               double scale, const std::optional<Tensor>& given) {
    context->set_materialize_grads(false);
    const Tensor dropped = given.value_or(Tensor());
    variable_list saved{x, dropped};
    saved.insert(saved.end(), in.begin(), in.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["scale"] = scale;
    detail::keep_queue(*context);
    const Tensor all = product(detail::rows_of(rest_of(x, dropped)), stacked(in)).mul_(scale);
    context->saved_data["columns"] = all.size(1);
    // For autograd no views: nothing changes them in place.
    at::AutoDispatchBelowADInplaceOrView not_views;
    variable_list out;
    int64_t begin = 0;
    for (const Tensor& each : in) {
      out.push_back(all.narrow(1, begin, each.size(0)));
      begin += each.size(0);
    }
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &dropped = saved[1];
    variable_list out(saved.size() + 1), came, in;  // of x, each factor, the scale and `dropped`
    std::vector<size_t> whose;
    std::vector<bool> wanted;
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) continue;  // nobody used it
      came.push_back(grads[i]);
      in.push_back(saved[i + 2]);
      whose.push_back(i + 1);
      wanted.push_back(context->needs_input_grad(i + 1));
    }
    if (came.empty()) return out;
    const Tensor u = beside(*context, came, context->saved_data["scale"].toDouble());
    if (context->needs_input_grad(0))
      out[0] = dropped.defined()
                   ? product(u, stacked(in).t()).view(x.sizes()).masked_fill_(dropped, 0)
                   : detail::SharedInput::gradient(x, u, stacked(in));
    variable_list to_in =
        detail::gradients_of_weights(*context, in, wanted, u, rest_of(x, dropped));
    for (size_t i = 0; i < whose.size(); ++i) out[whose[i]] = std::move(to_in[i]);
    return out;
  }

  // The gradient g B of h, one of the results: where those of the others lie, so that all of them
  // are one matrix for the backward above.
  static Tensor gradient(const Tensor& h, const Tensor& g, const Tensor& out) {
    auto* node = c10::GradMode::is_enabled()
                     ? nullptr
                     : dynamic_cast<torch::autograd::CppNode<Narrowed>*>(h.grad_fn().get());
    if (node == nullptr) return product(g, out.t());
    const int64_t columns = node->ctx_.saved_data["columns"].toInt();
    at::IValue& all = node->ctx_.saved_data["u"];
    if (columns == h.size(1)) {
      all = product(g, out.t());
      return all.toTensor();
    }
    if (!all.isTensor()) all = at::empty({h.size(0), columns}, g.options());
    // Where it lies in `h`'s own matrix.
    Tensor mine = all.toTensor().narrow(1, h.storage_offset(), h.size(1));
    if (detail::product_is_compiled(g))
      mine.copy_(product(g, out.t()));  // oneDNN writes whole matrices
    else
      at::mm_out(mine, g, out);
    return mine;
  }

 private:
  // `came` beside each other, times `scale`.
  static Tensor beside(AutogradContext& context, const variable_list& came, double scale) {
    if (c10::GradMode::is_enabled()) return at::cat(came, 1).mul(scale);
    at::IValue& kept = context.saved_data["u"];
    const Tensor all = kept.isTensor() ? kept.toTensor() : Tensor();
    kept = at::IValue();
    if (all.defined() && lie_in(came, all)) return all.mul_(scale);
    return at::cat(came, 1).mul_(scale);
  }
  static bool lie_in(const variable_list& parts, const Tensor& all) {
    int64_t columns = 0;
    for (const Tensor& part : parts) {
      if (columns + part.size(1) > all.size(1) || part.strides() != all.strides() ||
          part.const_data_ptr() != all.narrow(1, columns, part.size(1)).const_data_ptr())
        return false;
      columns += part.size(1);
    }
    return columns == all.size(1);
  }
};

// y + B h, in y's memory.
struct Widened : torch::autograd::Function<Widened> {
  static Tensor forward(AutogradContext* context, const Tensor& y, const Tensor& h,
                        const Tensor& out) {
    context->save_for_backward({h, out});
    detail::keep_queue(*context);
    // For autograd no view of y, and y itself has not changed: nobody reads it again.
    at::AutoDispatchBelowADInplaceOrView not_a_view;
    Tensor sum = at::alias(y);
    detail::product_into(sum.view({h.size(0), out.size(0)}), h, out.t(), 1, /*add=*/true);
    return sum;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &h = saved[0], &out = saved[1];
    const Tensor g = detail::rows_of(grads[0]);
    Tensor to_y, to_h, to_out;
    if (context->needs_input_grad(0)) to_y = grads[0];
    if (context->needs_input_grad(1)) to_h = Narrowed::gradient(h, g, out);
    if (context->needs_input_grad(2)) {
      const bool whole = detail::product_is_compiled(g) && !c10::GradMode::is_enabled();
      to_out = detail::gradient_of_weight(*context, out, g, whole ? h.contiguous() : h);
    }
    return {to_y, to_h, to_out};
  }
};

bool fits_factor(const Tensor& x, const Tensor& in) {
  return x.dim() >= 2 && x.numel() > 0 && in.scalar_type() == x.scalar_type() && in.is_leaf() &&
         !at::autocast::is_autocast_enabled(x.device().type());
}

}  // namespace

bool fits_low_rank(const Tensor& y, const Tensor& x, const Tensor& in, const Tensor& out) {
  const at::ScalarType type = y.scalar_type();
  return y.numel() > 0 && y.is_contiguous() && x.scalar_type() == type &&
         out.scalar_type() == type && out.is_leaf() && fits_factor(x, in);
}

bool reads_low_rank(const Tensor& x, const Tensor& in) {
  return fits_factor(x, in) && in.device() == x.device() && in.size(1) == x.size(-1) &&
         in.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() != nullptr;
}

std::vector<Tensor> narrow_low_rank(const Tensor& x, at::TensorList in, double scale) {
  return Narrowed::apply(detail::SharedInput::read(x), in, scale, std::nullopt);
}

Tensor widen_low_rank(const Tensor& y, const Tensor& narrow, const Tensor& out) {
  return Widened::apply(y, narrow, out);
}

Tensor add_low_rank(const Tensor& y, const Tensor& x, const Tensor& in, const Tensor& out,
                    double scale, const Tensor& dropped) {
  // What is dropped differs from reader to reader, so that their gradients of x are no one product.
  const Tensor narrow = dropped.defined() ? Narrowed::apply(x, at::TensorList(in), scale,
                                                            std::optional<Tensor>(dropped))[0]
                                          : narrow_low_rank(x, {in}, scale)[0];
  return widen_low_rank(y, narrow, out);
}

}  // namespace meshwright
