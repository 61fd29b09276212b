#include "tp_hooks.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/linear.h>

#include <mutex>

#include "meshwright/error.h"
#include "meshwright/nn/attention.h"
#include "sdk/base/trace_span.h"
#include "sdk/nn/linear.h"

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

using enum TpLayout;

namespace {

int64_t dim_of(TpLayout layout) { return layout == shard_1 ? 1 : -1; }

// Zeros behind `x` along `dim`, up to `size`.
Tensor padded(const Tensor& x, int64_t dim, int64_t size) {
  if (x.size(dim) == size) return x;
  int64_t d = dim < 0 ? dim + x.dim() : dim;
  std::vector<int64_t> pad(static_cast<size_t>(2 * (x.dim() - d)), 0);
  pad.back() = size - x.size(d);
  return at::constant_pad_nd(x, pad);
}

// This rank's ceil chunk of `dim`; backward: the chunks' gradients put together.
Tensor split_chunk(const Tensor& x, int64_t dim, const GroupPtr& group) {
  int64_t n = group->size(), size = x.size(dim), each = (size + n - 1) / n;
  Chunk mine = ceil_chunk(size, n, group->rank());
  return split_along(padded(x, dim, n * each), dim, group)
      .narrow(dim < 0 ? dim + x.dim() : dim, 0, mine.end - mine.begin);
}

// Between layouts that all ranks go on to use alike. `size`: the whole dimension of `from`, where
// that is cut.
Tensor convert(const Tensor& x, TpLayout from, TpLayout to, int64_t size, const GroupPtr& group) {
  if (from == to) return x;
  if (to == partial || from == partial)
    throw Error(ErrorCode::tp_plan_does_not_fit, std::string("an activation cannot go from ") +
                                                     std::string(layout_name(from)) + " to " +
                                                     std::string(layout_name(to)))
        .key("distributed.tp_plan");
  Tensor whole = from == replicate
                     ? x
                     : join_chunks(x, dim_of(from),
                                   from == shard_last ? size : x.size(1) * group->size(), group);
  return to == replicate ? whole : split_chunk(whole, dim_of(to), group);
}

}  // namespace

Tensor join_chunks(const Tensor& x, int64_t dim, int64_t size, const GroupPtr& group) {
  int64_t n = group->size(), each = (size + n - 1) / n;
  Tensor all = all_gather_replicated(padded(x, dim, each), dim, group);
  return n * each == size ? all : all.narrow(dim < 0 ? dim + x.dim() : dim, 0, size);
}

bool TpHooks::is_shared(const Tensor& x, TpLayout layout) const {
  return shared_.from && !shared_.from->expired() &&
         shared_.from->_unsafe_get_target() == x.unsafeGetTensorImpl() &&
         shared_.layout == layout && shared_.training == c10::GradMode::is_enabled();
}

// What columns compute on: the whole input, whose gradient is a sum over the ranks.
Tensor TpHooks::to_column(const Tensor& x, TpLayout from, int64_t size) {
  if (is_shared(x, from) && shared_.to.defined()) return shared_.to;
  Tensor to;
  if (from == replicate)
    to = copy_to(x, group_);
  else if (from == partial)
    to = copy_to(all_reduce(x, group_), group_);
  else if (from == shard_1)
    to = all_gather(x, 1, group_);
  else
    to = all_gather(padded(x, -1, (size + group_->size() - 1) / group_->size()), -1, group_)
             .narrow(x.dim() - 1, 0, size);
  shared_ = {
      c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(x.getIntrusivePtr()), to,
      nullptr, from, c10::GradMode::is_enabled()};
  return to;
}

bool TpHooks::gathers_in_pieces(const TpModule& column) const {
  return pieces && (column.gathers_for_columns || column.style.input == shard_1);
}

std::shared_ptr<Gathering> TpHooks::gathering_of(const Tensor& x) {
  if (is_shared(x, shard_1) && shared_.gathering) return shared_.gathering;
  auto made = std::make_shared<Gathering>(x, group_, unfinished);
  shared_ = {
      c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(x.getIntrusivePtr()),
      Tensor(), made, shard_1, c10::GradMode::is_enabled()};
  return made;
}

namespace {

bool under_autocast(const Tensor& x) {
  return at::autocast::is_autocast_enabled(x.device().type());
}

// A forward that is computed in another way must still run, to give its result a place: on nothing.
void run_on_nothing(const ForwardCall& call, const Tensor& x) {
  c10::NoGradGuard no_grad;
  call.run({x.narrow(1, 0, 0)});
}

}  // namespace

// The norm before has left its output cut: it is gathered here, while the own part is computed.
void TpHooks::column_pieces(HookHost& host, const TpModule& styled, torch::nn::LinearImpl& linear) {
  host.around = [self = shared_from_this(), &linear,
                 name = styled.name](ForwardCall call) -> std::vector<Tensor> {
    const Tensor& x = call.inputs.at(0);
    if (under_autocast(x)) return call.run({self->to_column(x, shard_1, 0)});
    run_on_nothing(call, x);
    return {column_in_pieces(x, linear.weight, linear.bias, self->gathering_of(x),
                             self->world_->trace(), name)};
  };
}

void TpHooks::row_pieces(HookHost& host, const TpModule& styled, torch::nn::LinearImpl& linear) {
  host.around = [self = shared_from_this(), &linear,
                 name = styled.name](ForwardCall call) -> std::vector<Tensor> {
    const Tensor& x = call.inputs.at(0);
    if (under_autocast(x)) return {self->reduced(call.run({x}).at(0), shard_1)};
    run_on_nothing(call, x);
    return {row_in_pieces(x, linear.weight, self->group_, self->world_->trace(), name)};
  };
}

// A sum over the ranks that is still to be added up, in the layout that the plan asks for.
Tensor TpHooks::reduced(const Tensor& x, TpLayout to) {
  if (to == partial) return x;
  return to == replicate ? all_reduce(x, group_) : reduce_scatter(x, dim_of(to), group_);
}

void TpHooks::column(HookHost& host, const TpModule& styled, int64_t size,
                     torch::nn::LinearImpl* linear) {
  TpStyle style = styled.style;
  int64_t in = linear != nullptr ? linear->weight.size(1) : 0;
  bool ready =
      styled.gathers_for_columns;  // the norm before it has gathered, and sums up the gradients
  if (linear != nullptr && gathers_in_pieces(styled))
    column_pieces(host, styled, *linear);
  else
    host.before_forward.push_back(
        [self = shared_from_this(), style, ready, in](torch::nn::Module&, TensorRefs& inputs) {
          Tensor& x = *inputs.at(0);
          if (!at::isFloatingType(x.scalar_type())) {  // ids of an embedding
            if (style.input == shard_1) x = convert(x, shard_1, replicate, 0, self->group_);
          } else if (!ready) {
            x = self->to_column(x, style.input, in);
          }
        });
  // Beside a head stands nothing that takes its input: what was made of it is let go.
  if (styled.name.find('.') == std::string::npos)
    host.after_forward.push_back(
        [self = shared_from_this()](torch::nn::Module&, TensorRefs&) { self->shared_ = {}; });
  if (style.output != shard_last)
    host.after_forward.push_back(
        [self = shared_from_this(), style, size](torch::nn::Module&, TensorRefs& outputs) {
          Tensor& y = *outputs.at(0);
          y = convert(y, shard_last, style.output, size, self->group_);
        });
}

// Where the column gathers, its adapter sees what has not been gathered yet: this factor is one
// more of the columns that share the gathering, so that nothing is sent twice.
void TpHooks::factor_in(HookHost& host, const TpModule& styled, torch::nn::LinearImpl& factor) {
  if (styled.style.kind == TpStyleKind::column && gathers_in_pieces(styled))
    column_pieces(host, styled, factor);
}

void TpHooks::row(HookHost& host, const TpModule& styled, torch::nn::LinearImpl& linear,
                  Tensor bias, int64_t size, bool adapted) {
  TpStyle style = styled.style;
  bool in_pieces = pieces && style.output == shard_1 && !adapted;
  if (in_pieces) row_pieces(host, styled, linear);
  host.before_forward.push_back(
      [self = shared_from_this(), style, size](torch::nn::Module&, TensorRefs& inputs) {
        self->shared_ = {};  // the block is over: nothing else takes its input
        Tensor& x = *inputs.at(0);
        x = convert(x, style.input, shard_last, size, self->group_);
      });
  host.after_forward.push_back(
      [self = shared_from_this(), style, bias, in_pieces](torch::nn::Module&, TensorRefs& outputs) {
        Tensor& y = *outputs.at(0);
        if (!in_pieces) y = self->reduced(y, style.output);
        if (bias.defined()) y = y + bias;
      });
}

// Rows of other ranks are looked up as row 0 and count as zeros.
void TpHooks::vocabulary(HookHost& host, const TpModule& styled, Chunk rows, Tensor weight) {
  TpStyle style = styled.style;
  auto outside = std::make_shared<Tensor>();  // between the two hooks of a call
  bool empty = rows.begin == rows.end;
  host.before_forward.push_back([self = shared_from_this(), style, rows, outside, empty](
                                    torch::nn::Module&, TensorRefs& inputs) {
    Tensor& ids = *inputs.at(0);
    if (style.input == shard_1)
      ids = convert(ids, shard_1, replicate, 0, self->group_);  // else every rank has them all
    Tensor mine = ids - rows.begin;
    *outside = (mine < 0).logical_or_(mine >= rows.end - rows.begin);
    ids = empty ? at::empty({0}, ids.options()) : mine.masked_fill_(*outside, 0);
  });
  host.after_forward.push_back([self = shared_from_this(), style, outside, empty, weight](
                                   torch::nn::Module&, TensorRefs& outputs) {
    Tensor& y = *outputs.at(0);
    Tensor mask = std::move(*outside);
    *outside = Tensor();
    if (empty) {
      std::vector<int64_t> sizes = mask.sizes().vec();
      sizes.push_back(weight.size(1));
      y = at::zeros(sizes, y.options()) +
          weight.sum().to(
              y.scalar_type());  // stays a part of the graph: its backward may be collective
    } else {
      y = y.masked_fill(mask.unsqueeze(-1), 0);
    }
    y = self->reduced(y, style.output);
  });
}

void TpHooks::norm(HookHost& host, const TpModule& styled) {
  TpStyle style = styled.style;
  if (style.input != shard_1)
    host.before_forward.push_back(
        [self = shared_from_this(), style](torch::nn::Module&, TensorRefs& inputs) {
          Tensor& x = *inputs.at(0);
          x = convert(x, style.input, shard_1, x.size(-1), self->group_);
        });
  bool gathers = style.kind == TpStyleKind::sequence_all_gather;
  if (!gathers && style.output == shard_1) return;
  if (gathers && styled.gathers_for_columns && pieces) return;  // the columns gather it themselves
  host.after_forward.push_back(
      [self = shared_from_this(), style, gathers, sums = styled.gathers_for_columns](
          torch::nn::Module&, TensorRefs& outputs) {
        Tensor& y = *outputs.at(0);
        if (gathers && sums)
          y = all_gather(y, 1, self->group_);
        else
          y = convert(y, shard_1, gathers ? replicate : style.output, y.size(-1), self->group_);
      });
}

namespace {

// While one lives, LibTorch's generator gives a rank numbers of its own. Before and after, all
// ranks of the group have the same ones, however many each of them has drawn.
class OwnDraws {
 public:
  OwnDraws(at::Device device, int64_t rank)
      : generator_(device.is_cuda() ? at::globalContext().defaultGenerator(device)
                                    : at::detail::getDefaultCPUGenerator()),
        on_host_(device.is_cpu()) {
    std::lock_guard lock(generator_.mutex());
    if (on_host_) {
      seed_ = at::check_generator<at::CPUGeneratorImpl>(generator_)->random64();
      state_ = generator_.get_state().clone();
    } else {
      seed_ = generator_.current_seed();
    }
    const uint64_t own = (seed_ ^ static_cast<uint64_t>(rank + 1)) * 0x9e3779b97f4a7c15u;
    const uint64_t offset = on_host_ ? 0 : generator_.get_offset();
    generator_.set_current_seed(own);
    if (!on_host_) generator_.set_offset(offset);
  }
  OwnDraws(const OwnDraws&) = delete;
  OwnDraws& operator=(const OwnDraws&) = delete;
  ~OwnDraws() {
    std::lock_guard lock(generator_.mutex());
    if (on_host_) {
      generator_.set_state(state_);
      return;
    }
    const uint64_t offset = generator_.get_offset();
    generator_.set_current_seed(seed_);
    generator_.set_offset(offset);
  }

 private:
  at::Generator generator_;
  bool on_host_;
  uint64_t seed_ = 0;
  Tensor state_;
};

}  // namespace

void TpHooks::own_draws(AttentionCoreImpl& core) const {
  HookHost* host = HookHost::of(core);
  if (host == nullptr || core.options().dropout == 0) return;
  host->around = [&core, rank = group_->rank(), inner = host->around](ForwardCall call) {
    auto run = [&] { return inner ? inner(call) : call.run(call.inputs); };
    if (!core.is_training()) return run();
    OwnDraws own(call.inputs.at(0).device(), rank);
    return run();
  };
}

}  // namespace meshwright::detail
