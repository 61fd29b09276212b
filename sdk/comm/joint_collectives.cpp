#include "joint_collectives.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <numeric>

#include "group_impl.h"
#include "meshwright/error.h"
#include "meshwright/parallel/collectives.h"
#include "parts.h"

namespace meshwright::detail {

using at::Tensor;

namespace {

JointCollectives* joint(const Group& group) {
  return dynamic_cast<JointCollectives*>(GroupAccess::of(group).transport.get());
}

int64_t bytes_of(const std::vector<Tensor>& tensors) {
  int64_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

}  // namespace

bool has_joint_collectives(const Group& group) {
  return group.size() > 1 && joint(group) != nullptr;
}

Work all_gather_each(Group& group, const std::vector<Tensor>& shards,
                     const std::vector<Tensor>& wholes) {
  const int64_t bytes = bytes_of(shards), n = group.size();
  if (bytes == 0) return {};
  return GroupAccess::begin(group, "all_gather", bytes * n, bytes * (n - 1), [&](Transport&) {
    return joint(group)->all_gather_each(shards, wholes);
  });
}

Work reduce_scatter_each(Group& group, const std::vector<Tensor>& wholes,
                         const std::vector<Tensor>& shards, double scale) {
  const int64_t bytes = bytes_of(shards), n = group.size();
  if (bytes == 0) return {};
  return GroupAccess::begin(group, "reduce_scatter", bytes * n, bytes * (n - 1), [&](Transport&) {
    return joint(group)->reduce_scatter_each(wholes, shards, scale);
  });
}

}  // namespace meshwright::detail

namespace meshwright {

namespace {

using at::Tensor;
using torch::autograd::variable_list;

Tensor summed(const Tensor& x, Group& group) {
  Tensor out = x.clone(at::MemoryFormat::Contiguous);
  detail::make_room(group, static_cast<int64_t>(out.nbytes()));
  group.all_reduce(out).wait();
  return out;
}

Tensor part(const Tensor& x, int64_t dim, Group& group) {
  int64_t n = group.size(), size = x.size(dim);
  if (size % n != 0)
    throw Error(ErrorCode::model_does_not_fit, "dimension " + std::to_string(dim) + " of size " +
                                                   std::to_string(size) +
                                                   " does not divide by the " + std::to_string(n) +
                                                   " ranks of group " + group.axis());
  return x.narrow(dim, group.rank() * (size / n), size / n);
}

// Ranks' tensors along `dim`.
Tensor gathered(const Tensor& x, int64_t dim, Group& group) {
  if (group.size() == 1 || x.numel() == 0) return x.contiguous();
  return detail::PartsGather(x, dim, group).whole();
}

Tensor scattered(const Tensor& x, int64_t dim, Group& group) {
  int64_t n = group.size();
  if (n == 1) return x.contiguous();
  Tensor own = part(x, dim, group);  // checks the size
  if (x.numel() == 0) return own.contiguous();
  std::vector<Tensor> parts = x.chunk(n, dim);
  std::vector<int64_t> shape = own.sizes().vec();
  if (group.has_native_reduce_scatter()) {
    int64_t each = own.numel();
    Tensor packed = at::empty({n * each}, x.options()), out = at::empty({each}, x.options());
    for (int64_t r = 0; r < n; ++r)
      packed.narrow(0, r * each, each).view(shape).copy_(parts[static_cast<size_t>(r)]);
    group.reduce_scatter(packed, out).wait();
    return out.view(shape);
  }
  detail::PartsSum sum(shape, x.options(), group);
  for (int64_t r = 0; r < n; ++r)
    if (r != group.rank()) sum.slot(r).copy_(parts[static_cast<size_t>(r)]);
  sum.start();
  return sum.add_up(own).contiguous();
}

// One node for all: forward and backward are the two closures.
using Move = std::function<Tensor(const Tensor&)>;
struct Moved : torch::autograd::Node {
  Move back;
  std::string name() const override { return "MeshwrightCollective"; }
  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return {Tensor()};
    return {back(grads[0])};
  }
};

Tensor moved(const Tensor& x, const Move& forward, Move back) {
  Tensor out;
  {
    c10::NoGradGuard no_grad;
    out = forward(x);
    if (out.is_same(x)) out = x.detach();
  }
  if (!c10::GradMode::is_enabled() || !x.requires_grad()) return out;
  auto node = std::shared_ptr<Moved>(new Moved(), torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(x));
  node->back = [back = std::move(back)](const Tensor& g) {
    c10::NoGradGuard no_grad;
    return back(g);
  };
  torch::autograd::set_history(out, node);
  return out;
}

Tensor own_part(const Tensor& x, int64_t dim, Group& group) {
  return part(x, dim, group).contiguous();
}

// Both ways along one dimension, which may count from the last.
using Along = Tensor (*)(const Tensor&, int64_t, Group&);
Tensor moved_along(const Tensor& x, int64_t dim, const GroupPtr& group, Along forward,
                   Along backward) {
  const int64_t d = dim < 0 ? dim + x.dim() : dim;
  return moved(
      x, [&](const Tensor& t) { return forward(t, d, *group); },
      [group, d, backward](const Tensor& g) { return backward(g, d, *group); });
}

}  // namespace

Tensor all_reduce(const Tensor& x, const GroupPtr& group) {
  return moved(
      x, [&](const Tensor& t) { return summed(t, *group); }, [](const Tensor& g) { return g; });
}

Tensor copy_to(const Tensor& x, const GroupPtr& group) {
  return moved(
      x, [](const Tensor& t) { return t; }, [group](const Tensor& g) { return summed(g, *group); });
}

Tensor all_gather(const Tensor& x, int64_t dim, const GroupPtr& group) {
  return moved_along(x, dim, group, gathered, scattered);
}

Tensor all_gather_replicated(const Tensor& x, int64_t dim, const GroupPtr& group) {
  return moved_along(x, dim, group, gathered, own_part);
}

Tensor reduce_scatter(const Tensor& x, int64_t dim, const GroupPtr& group) {
  return moved_along(x, dim, group, scattered, gathered);
}

Tensor split_along(const Tensor& x, int64_t dim, const GroupPtr& group) {
  return moved_along(x, dim, group, own_part, gathered);
}

Tensor all_to_all(const Tensor& x, std::vector<int64_t> in_splits, std::vector<int64_t> out_splits,
                  const GroupPtr& group) {
  auto run = [group](const Tensor& t, const std::vector<int64_t>& in,
                     const std::vector<int64_t>& out) {
    std::vector<int64_t> shape = t.sizes().vec();
    shape[0] = std::accumulate(out.begin(), out.end(), int64_t{0});
    Tensor result = at::empty(shape, t.options());
    group->all_to_all(t.contiguous(), in, result, out).wait();
    return result;
  };
  return moved(
      x, [&](const Tensor& t) { return run(t, in_splits, out_splits); },
      [run, in_splits, out_splits](const Tensor& g) { return run(g, out_splits, in_splits); });
}

}  // namespace meshwright
