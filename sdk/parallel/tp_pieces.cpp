#include "tp_pieces.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "meshwright/error.h"
#include "meshwright/parallel/trace_span.h"
#include "sdk/nn/linear_product.h"

namespace meshwright::detail {

using at::Tensor;
using torch::autograd::variable_list;

namespace {

// Rows [from, to) of the sequence times weight [out, in] transposed.
Tensor times(const Tensor& x, const Tensor& weight) {
  Tensor y = product(x.flatten(0, -2), weight);
  return y.view({x.size(0), x.size(1), weight.size(0)});
}

Tensor part(const Tensor& x, int64_t rank, int64_t each) { return x.narrow(1, rank * each, each); }

// Calls f(begin, count) for the runs of the sequence before and behind this rank's part.
template <class F>
void each_other(Group& group, int64_t each, F f) {
  int64_t before = group.rank() * each, behind = (group.size() - group.rank() - 1) * each;
  if (before > 0) f(0, before);
  if (behind > 0) f(before + each, behind);
}

}  // namespace

Gathering::Gathering(const Tensor& x, GroupPtr group, std::shared_ptr<bool> unfinished)
    : group_(std::move(group)),
      unfinished_(std::move(unfinished)),
      own_(x.detach().contiguous()),
      parts_(own_, 1, *group_) {}

Gathering::~Gathering() {
  if (unfinished_ && done_ > 0 && done_ < uses_) *unfinished_ = true;
}

void Gathering::arrive() {
  if (arrived_) return;
  whole_ = parts_.whole();
  own_ = part(whole_, group_->rank(), own_.size(1));  // kept until backward once, not twice
  arrived_ = true;
}

struct ColumnPieces : torch::autograd::Node {
  std::string name() const override { return "MeshwrightColumnPieces"; }
  void release_variables() override {
    gathering.reset();
    weight = Tensor();
  }
  variable_list apply(variable_list&& grads) override {
    c10::NoGradGuard no_grad;
    if (!gathering) throw Error(ErrorCode::internal, module + ": its graph was used twice");
    Gathering& g = *gathering;
    Group& group = *g.group_;
    int64_t each = g.own_.size(1);
    Tensor gy =
        grads[0].defined()
            ? grads[0].contiguous()
            : at::zeros({g.own_.size(0), each * group.size(), weight.size(0)}, g.own_.options());
    auto weights = [&] {
      return should_compute_output(1) ? product(flat(gy).t(), flat(g.whole_).t()) : Tensor();
    };
    Tensor to_bias = has_bias && should_compute_output(2) ? flat(gy).sum(0) : Tensor();
    if (!should_compute_output(0)) return of(Tensor(), weights(), to_bias);
    Tensor turned = weight.t();
    if (++g.done_ < g.uses_) {
      Tensor to_x = times(gy, turned);
      g.grad_ = g.grad_.defined() ? g.grad_.add_(to_x) : to_x;
      return of(Tensor(), weights(), to_bias);
    }
    PartsSum scatter(g.own_.sizes().vec(), gy.options(), group);
    each_other(group, each, [&](int64_t begin, int64_t count) {
      Tensor to_x = times(gy.narrow(1, begin, count), turned);
      if (g.grad_.defined()) to_x.add_(g.grad_.narrow(1, begin, count));
      for (int64_t r = begin / each; r < (begin + count) / each; ++r)
        scatter.slot(r).copy_(part(to_x, r - begin / each, each));
    });
    scatter.start();
    Tensor own, to_weight;
    {
      TraceSpan span(*trace, "while gradients are scattered: ", module);
      own = times(part(gy, group.rank(), each), turned);
      if (g.grad_.defined()) own.add_(part(g.grad_, group.rank(), each));
      to_weight = weights();
    }
    g.grad_ = Tensor();
    return of(scatter.add_up(own), to_weight, to_bias);
  }
  variable_list of(const Tensor& to_x, const Tensor& to_weight, const Tensor& to_bias) const {
    return has_bias ? variable_list{to_x, to_weight, to_bias} : variable_list{to_x, to_weight};
  }
  static Tensor flat(const Tensor& t) { return t.flatten(0, -2); }

  std::shared_ptr<Gathering> gathering;
  Tensor weight;
  bool has_bias = false;
  Trace* trace = nullptr;
  std::string module;
};

Tensor column_in_pieces(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const std::shared_ptr<Gathering>& gathering, Trace& trace,
                        const std::string& name) {
  Gathering& g = *gathering;
  Tensor y;
  {
    c10::NoGradGuard no_grad;
    int64_t each = x.size(1);
    Tensor w = weight.detach();
    if (g.arrived_) {
      y = times(g.whole_, w);
    } else {
      y = at::empty({x.size(0), each * g.group_->size(), w.size(0)}, x.options());
      {
        TraceSpan span(trace, "while the sequence is gathered: ", name);
        part(y, g.group_->rank(), each).copy_(times(g.own_, w));
      }
      g.arrive();
      each_other(*g.group_, each, [&](int64_t begin, int64_t count) {
        y.narrow(1, begin, count).copy_(times(g.whole_.narrow(1, begin, count), w));
      });
    }
    if (bias.defined()) y.add_(bias.detach());
  }
  if (!c10::GradMode::is_enabled() ||
      !(x.requires_grad() || weight.requires_grad() || (bias.defined() && bias.requires_grad())))
    return y;
  auto node = std::shared_ptr<ColumnPieces>(new ColumnPieces(), torch::autograd::deleteNode);
  if (bias.defined())
    node->set_next_edges(torch::autograd::collect_next_edges(x, weight, bias));
  else
    node->set_next_edges(torch::autograd::collect_next_edges(x, weight));
  ++g.uses_;
  node->gathering = gathering;
  node->weight = weight.detach();
  node->has_bias = bias.defined();
  node->trace = &trace;
  node->module = name;
  torch::autograd::set_history(y, node);
  return y;
}

namespace {

struct RowPieces : torch::autograd::Node {
  std::string name() const override { return "MeshwrightRowPieces"; }
  void release_variables() override { x = weight = Tensor(); }
  variable_list apply(variable_list&& grads) override {
    c10::NoGradGuard no_grad;
    if (!x.defined()) throw Error(ErrorCode::internal, module + ": its graph was used twice");
    int64_t each = x.size(1) / group->size();
    Tensor own = grads[0].defined() ? grads[0]
                                    : at::zeros({x.size(0), each, weight.size(0)}, x.options()),
           turned = weight.t();
    Gathering gathering(own, group);
    Tensor to_x = at::empty(x.sizes(), x.options()), to_weight;
    {
      TraceSpan span(*trace, "while gradients are gathered: ", module);
      part(to_x, group->rank(), each).copy_(times(own, turned));
    }
    const Tensor& whole = gathering.whole();
    each_other(*group, each, [&](int64_t begin, int64_t count) {
      to_x.narrow(1, begin, count).copy_(times(whole.narrow(1, begin, count), turned));
    });
    if (should_compute_output(1))
      to_weight = product(ColumnPieces::flat(whole).t(), ColumnPieces::flat(x).t());
    return {to_x, to_weight};
  }

  Tensor x, weight;
  GroupPtr group;
  Trace* trace = nullptr;
  std::string module;
};

}  // namespace

Tensor row_in_pieces(const Tensor& x, const Tensor& weight, const GroupPtr& group, Trace& trace,
                     const std::string& name) {
  Tensor y, input = x.detach(), w = weight.detach();
  {
    c10::NoGradGuard no_grad;
    int64_t each = x.size(1) / group->size();
    PartsSum scatter({x.size(0), each, w.size(0)}, input.options(), *group);
    each_other(*group, each, [&](int64_t begin, int64_t count) {
      Tensor sums = times(input.narrow(1, begin, count), w);
      for (int64_t r = begin / each; r < (begin + count) / each; ++r)
        scatter.slot(r).copy_(part(sums, r - begin / each, each));
    });
    scatter.start();
    {
      TraceSpan span(trace, "while sums are scattered: ", name);
      y = times(part(input, group->rank(), each), w);
    }
    y = scatter.add_up(y);
  }
  if (!c10::GradMode::is_enabled() || !(x.requires_grad() || weight.requires_grad())) return y;
  auto node = std::shared_ptr<RowPieces>(new RowPieces(), torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(x, weight));
  node->x = input;
  node->weight = w;
  node->group = group;
  node->trace = &trace;
  node->module = name;
  torch::autograd::set_history(y, node);
  return y;
}

}  // namespace meshwright::detail
