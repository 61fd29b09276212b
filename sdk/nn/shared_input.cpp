#include "shared_input.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/alias.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "linear_product.h"

namespace meshwright::detail {

namespace {

using at::Tensor;
using torch::autograd::variable_list;

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

}  // namespace meshwright::detail
