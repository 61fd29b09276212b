#include "gradient_reducer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "meshwright/error.h"
#include "sdk/comm/activity.h"
#include "sdk/comm/joint_collectives.h"
#include "sdk/comm/shared_memory.h"
#include "sdk/nn/buffers.h"
#include "unit.h"

namespace meshwright::detail {

using at::Tensor;

namespace {

constexpr const char* kToSum = "gradients to be summed of ";

// A collective scales what it sums, which rounds nothing where the factor is a power of two. Half
// of the division of float16 comes after the sum.
bool scales_alike(at::ScalarType type, double factor) {
  int exponent = 0;
  return type != at::kHalf && std::frexp(factor, &exponent) == 0.5;
}

}  // namespace

GradientReducer::GradientReducer(UnitState& unit) : unit_(unit) {
  using Average = ReductionPolicy::Average;
  const Average average = unit.context.policy.reduction.average;
  // Units of groups of their own (experts) have no replicas, and know what to divide by.
  double n = unit.own_groups ? unit.sharding.divisor : static_cast<double>(unit.context.averaged());
  // float16 alone can overflow in the sum: half of the division before it, half after.
  if (average == Average::in_sum) before_ = unit.reduce == at::kHalf ? 1 / std::sqrt(n) : 1;
  if (average == Average::before_sum) before_ = 1 / n;
  after_ = average == Average::in_sum ? 1 / n / before_ : 1;
  if (has_joint_collectives(unit.group()) && scales_alike(unit.reduce, before_ * after_)) {
    within_ = before_ * after_;
    before_ = after_ = 1;
  }
}

Tensor GradientReducer::allocate() {
  int64_t each = unit_.layout.trainable_size();
  at::TensorOptions options = at::TensorOptions().device(unit_.device()).dtype(unit_.gradient_type);
  if (!unit_.accumulates_unsharded()) return at::zeros({each}, options);
  sums_ = at::zeros({each * unit_.shards()}, options);
  return sums_.narrow(0, unit_.me() * each, each);
}

void GradientReducer::begin_step() {
  unit_.gradient_memory.give_back();
  fresh_ = true;
  ready_ = unit_.trainable_count == 0;  // no gradient will say so
  for (UnitState::Parameter& p : unit_.parameters) p.has_grad = false;
}

Tensor GradientReducer::take_gradient(UnitState::Parameter& p) {
  Tensor gradient = p.variable.grad();
  if (gradient.defined()) {
    p.variable.mutable_grad() = Tensor();
    gradient = gradient.contiguous().view({-1});
  }
  if (p.accumulated_grad.defined()) {
    if (gradient.defined()) p.accumulated_grad.add_(gradient);
    gradient = std::move(p.accumulated_grad);
    p.accumulated_grad = Tensor();
  }
  return gradient;
}

void GradientReducer::accumulate() {
  if (unit_.reduce == unit_.param) return;  // autograd adds up in place
  for (UnitState::Parameter& p : unit_.parameters) {
    if (!p.trainable || !p.variable.grad().defined()) continue;
    Tensor gradient = take_gradient(p);
    p.accumulated_grad =
        gradient.scalar_type() == unit_.reduce ? gradient : gradient.to(unit_.reduce);
  }
}

void GradientReducer::absorb(UnitState::Parameter& p) {
  Tensor gradient = p.variable.grad();
  p.variable.mutable_grad() = Tensor();
  if (!gradient.defined()) return;
  if (!fresh_ && unit_.context.told) throw reduced_already("a gradient of " + p.name + " came");
  if (!fresh_) throw second_gradient(p.name);
  scaled_add(sums_.narrow(0, p.offset, p.count), gradient.contiguous().view({-1}), before_,
             !p.has_grad);
  p.has_grad = true;
}

std::optional<GradientPlace> GradientReducer::place(size_t index) {
  UnitState::Parameter& p = unit_.parameters[index];
  const UnitContext& context = unit_.context;
  // A device's products may be wider than their factors.
  const bool wide = unit_.device().is_cuda() && unit_.reduce == at::kFloat;
  if (unit_.accumulates_unsharded() || context.policy.checks.own) return std::nullopt;
  bool fits = unit_.shards() == 1 && !unit_.replicated() && context.synchronise &&
              (unit_.reduce == unit_.param || wide) &&
              unit_.gradient.scalar_type() == unit_.reduce &&
              unit_.gradient.device() == unit_.device() && !p.variable.grad().defined() &&
              !p.accumulated_grad.defined();
  if (!fits) return wide ? std::optional(beside(p)) : std::nullopt;
  unit_.gradient_memory.take();
  for (const ShardSlice& slice : unit_.slices[0]) {
    if (slice.parameter != index || slice.count != p.count) continue;
    GradientPlace out{unit_.gradient.narrow(0, slice.at, slice.count).view(p.sizes),
                      before_ * after_, p.placed || !fresh_};
    p.placed = true;
    return out;
  }
  return std::nullopt;
}

// Where what waits for the unit's reduction adds up.
GradientPlace GradientReducer::beside(UnitState::Parameter& p) const {
  const bool add = p.accumulated_grad.defined();
  if (!add)
    p.accumulated_grad =
        at::empty({p.count}, at::TensorOptions().device(unit_.device()).dtype(unit_.reduce));
  return {p.accumulated_grad.view(p.sizes), 1, add};
}

// As in torch's FSDP2, ranks are summed in the reduce dtype, replicas too, and the sum is cast to
// the gradients' dtype at its end. A back end that sums brings the sum itself. Replicas are summed
// over what this reduction adds, so an earlier sum of the step must stay apart; and on the ranks'
// device.
void GradientReducer::pack() {
  UnitContext& context = unit_.context;
  if (context.reducing != nullptr) context.reducing->finish();
  finish_replication();
  context.reducing = this;
  int64_t n = unit_.shards(), trainable = unit_.layout.trainable_size();
  const bool offloads = unit_.gradient.device() != unit_.device(),
             sums_wide = unit_.replicated() || (n > 1 && !remote() && sums_apart());
  const bool apart =
      offloads ||  // to go to the host in one copy
      (unit_.replicated() ? !fresh_ || unit_.reduce != unit_.gradient_type : sums_wide);
  first_ = fresh_;
  unit_.gradient_memory.take();
  name_memory(unit_.gradient, "gradients of ", unit_.name);
  target_ = apart ? context.pool->take(trainable, sums_wide ? unit_.reduce : unit_.gradient_type)
                  : unit_.gradient;
  bool first = apart || fresh_;
  fresh_ = false;
  int64_t slots = remote() ? n : n - 1;
  mapped_ = n > 1 && trainable > 0 &&
            maps_exchange(unit_.group(),
                          trainable * slots * static_cast<int64_t>(c10::elementSize(unit_.reduce)));
  if (mapped_)
    packed_ = stage(unit_.group(), trainable * slots, unit_.reduce);
  else if (n > 1 && packs())
    packed_ = context.pool->take(trainable * slots, unit_.reduce, BufferPool::Use::reduce);
  name_memory(packed_, kToSum, unit_.name);
  std::vector<Tensor> gradients(unit_.parameters.size());
  for (size_t i = 0; i < unit_.parameters.size(); ++i)
    if (unit_.parameters[i].trainable) gradients[i] = take_gradient(unit_.parameters[i]);
  writes_ = remote() && first;
  if (!remote()) pack_own(gradients, first);
  if (!packs())
    leave_unpacked(std::move(gradients));
  else if (n > 1)
    pack_for_others(gradients);
  reducing_ = true;
}

// This rank's own part goes straight into the target. Where nothing is written, padding and missing
// gradients are zero.
void GradientReducer::pack_own(const std::vector<Tensor>& gradients, bool first) {
  int64_t trainable = unit_.layout.trainable_size(), padding_from = 0;
  auto pad_until = [&](int64_t until) {
    if (first) clear(target_, padding_from, until - padding_from);
  };
  for (const ShardSlice& slice : unit_.slices[static_cast<size_t>(unit_.me())]) {
    if (slice.at >= trainable) continue;
    pad_until(slice.at);
    padding_from = slice.at + slice.count;
    const Tensor& gradient = gradients[slice.parameter];
    Tensor into = target_.narrow(0, slice.at, slice.count);
    bool placed = std::exchange(unit_.parameters[slice.parameter].placed, false);
    if (gradient.defined())
      scaled_add(into, gradient.narrow(0, slice.from, slice.count), before_ * after_,
                 first && !placed);
    else if (first && !placed)
      into.zero_();
  }
  pad_until(trainable);
}

// A slot for every rank that gets something of us: all of them where the back end sums, else all
// others.
void GradientReducer::pack_for_others(const std::vector<Tensor>& gradients) {
  int64_t trainable = unit_.layout.trainable_size();
  bool scales = packed_.is_cpu();  // while copying
  Copies copies(scales ? before_ : 1);
  for (int64_t r = 0, slot = 0; r < unit_.shards(); ++r) {
    if (r == unit_.me() && !remote()) continue;
    int64_t base = trainable * slot++, end = 0;
    for (const ShardSlice& slice : unit_.slices[static_cast<size_t>(r)]) {
      if (slice.at >= trainable) continue;
      clear(packed_, base + end, slice.at - end);
      end = slice.at + slice.count;
      if (gradients[slice.parameter].defined())
        copies.add(packed_, base + slice.at, gradients[slice.parameter], slice.from, slice.count);
      else
        clear(packed_, base + slice.at, slice.count);
    }
    clear(packed_, base + end, trainable - end);
  }
  copies.flush();
  if (before_ != 1 && !scales) packed_.mul_(before_);
}

// They go out in the reduce dtype, in which most products are already.
void GradientReducer::leave_unpacked(std::vector<Tensor> gradients) {
  Copies casts;
  for (Tensor& gradient : gradients) {
    if (!gradient.defined() || gradient.scalar_type() == unit_.reduce) continue;
    Tensor cast = at::empty(gradient.sizes(), gradient.options().dtype(unit_.reduce));
    casts.add(cast, 0, std::exchange(gradient, cast), 0, cast.numel());
  }
  casts.flush();
  unpacked_ = std::move(gradients);
}

void GradientReducer::start() {
  const Purpose purpose("summing the gradients of ", unit_.name);
  int64_t n = unit_.shards(), trainable = unit_.layout.trainable_size();
  if (n == 1) return;
  if (remote()) return start_sum();
  BufferPool& pool = *unit_.context.pool;
  if (!mapped_) received_ = pool.take(trainable * (n - 1), unit_.reduce, BufferPool::Use::reduce);
  exchanging_ = unit_.group().pairwise_exchange(packed_, received_);
}

// What comes first in a step goes straight to where it stays, unless that is a registered buffer's
// to receive.
void GradientReducer::start_sum() {
  UnitContext& context = unit_.context;
  Tensor sum = target_;
  if (!writes_ || after_ != 1 || target_.scalar_type() != unit_.reduce ||
      context.policy.buffers.registered)
    sum = received_ = context.pool->take(target_.numel(), unit_.reduce, BufferPool::Use::reduce);
  name_memory(received_, "summed gradients of ", unit_.name);
  if (within_ == 1 && packed_.defined()) {
    exchanging_ = unit_.group().reduce_scatter(packed_, sum);
    return;
  }
  std::vector<Tensor> wholes, parts;
  if (packed_.defined()) {
    wholes.push_back(packed_);
    parts.push_back(sum);
  }
  for (const ShardSlice& slice : unit_.slices[static_cast<size_t>(unit_.me())]) {
    const UnitState::Parameter& p = unit_.parameters[slice.parameter];
    if (unpacked_.empty() || !p.trainable) continue;
    Tensor& gradient = unpacked_[slice.parameter];
    if (!gradient.defined()) gradient = at::zeros({p.count}, sum.options());
    name_for_checks(gradient, kToSum, unit_.name);
    wholes.push_back(gradient);
    parts.push_back(sum.narrow(0, slice.at, slice.count));
  }
  if (!wholes.empty()) name_memory(wholes.back(), kToSum, unit_.name);
  exchanging_ = reduce_scatter_each(unit_.group(), wholes, parts, within_);
}

// The step's one reduction of whole gradients. Nothing is copied where the sums have the dtype of
// the collective and go through sockets or NCCL.
void GradientReducer::reduce_accumulated() {
  const Purpose purpose("summing the gradients of ", unit_.name);
  c10::NoGradGuard no_grad;
  UnitContext& context = unit_.context;
  int64_t n = unit_.shards(), me = unit_.me(), each = unit_.layout.trainable_size();
  Group& group = unit_.group();
  const bool maps =
      n > 1 && !remote() && each > 0 &&
      maps_exchange(group, each * (n - 1) * static_cast<int64_t>(c10::elementSize(unit_.reduce)));
  // Through sockets what is under way may go on until this one follows it, so that no link rests in
  // between: gradients lie where they are sent from, and only what is received needs memory.
  const bool follows = n > 1 && !remote() && !maps && unit_.reduce == unit_.gradient_type;
  GradientReducer* before = std::exchange(context.reducing, this);
  if (before != nullptr && !follows) std::exchange(before, nullptr)->finish();
  reducing_ = true;
  fresh_ = false;
  first_ = true;
  for (const UnitState::Parameter& p : unit_.parameters)
    if (p.trainable && !p.has_grad) clear(sums_, p.offset, p.count);
  auto in_reduce_type = [&] {
    if (unit_.reduce == unit_.gradient_type) return sums_;
    Tensor cast = context.pool->take(sums_.numel(), unit_.reduce, BufferPool::Use::reduce);
    return cast.copy_(sums_);
  };
  target_ = unit_.gradient;
  if (n == 1) {
    if (unit_.replicated()) target_ = in_reduce_type();
    finish();  // nothing to wait for: the copies may start
    return;
  }
  if (remote()) {
    packed_ = in_reduce_type();
    writes_ = true;
    start_sum();
    return;
  }
  if (sums_apart()) target_ = context.pool->take(each, unit_.reduce).copy_(unit_.gradient);
  if (maps) {
    packed_ = stage(group, each * (n - 1), unit_.reduce);
    copy(packed_, 0, sums_, 0, me * each);
    copy(packed_, me * each, sums_, (me + 1) * each, (n - 1 - me) * each);
  } else {
    packed_ = in_reduce_type();
    received_ = context.pool->take(each * (n - 1), unit_.reduce, BufferPool::Use::reduce);
  }
  exchanging_ = group.pairwise_exchange(packed_, received_);
  if (after_ != 1) target_.mul_(after_);
  if (before != nullptr) before->finish();
}

void GradientReducer::reduce_in_turn() {
  ready_ = true;
  UnitContext& context = unit_.context;
  for (; context.turn < context.turns.size() && context.turns[context.turn]->ready_; ++context.turn)
    if (GradientReducer& next = *context.turns[context.turn]; next.fresh_)  // not told to before
      next.reduce_accumulated();
}

void GradientReducer::reduce_once() {
  if (!fresh_) throw reduced_already("unit \"" + unit_.name + "\" was to reduce");
  reduce_accumulated();
  ready_ = true;
}

bool GradientReducer::holds(const UnitState::Parameter& p) {
  return p.trainable && (p.variable.grad().defined() || p.accumulated_grad.defined());
}

bool GradientReducer::waits() const {
  return std::any_of(
      unit_.parameters.begin(), unit_.parameters.end(),
      [&](const UnitState::Parameter& p) { return p.trainable && (fresh_ || holds(p)); });
}

void GradientReducer::reduce_late() {
  for (const UnitState::Parameter& p : unit_.parameters)
    if (!fresh_ && holds(p)) throw second_gradient(p.name);
  if (!fresh_) return;
  if (unit_.accumulates_unsharded()) {
    reduce_accumulated();
  } else if (unit_.trainable_count > 0) {
    c10::NoGradGuard no_grad;
    pack();
    start();
  }
}

void GradientReducer::finish() {
  if (!reducing_) return;
  c10::NoGradGuard no_grad;
  reducing_ = false;
  exchanging_.wait();
  for (int64_t r = 0; r < unit_.shards(); ++r)
    if (Tensor from = peer(exchanging_, r); from.defined())
      scaled_add(target_, from, after_, false);
  exchanging_ = Work();
  int64_t each = unit_.layout.trainable_size(),
          slots = received_.defined() && each > 0 ? received_.numel() / each : 0;
  for (int64_t r = 0; r < slots; ++r, writes_ = false)
    scaled_add(target_, received_.narrow(0, r * each, each), after_, writes_);
  packed_ = received_ = Tensor();
  unpacked_.clear();
  writes_ = false;
  if (unit_.context.reducing == this) unit_.context.reducing = nullptr;
  if (unit_.replicated())
    replicating_ = unit_.replicate->all_reduce(target_);
  else
    finish_replication();  // nothing to wait for
}

void GradientReducer::finish_replication() {
  if (!target_.defined() || reducing_) return;
  c10::NoGradGuard no_grad;
  replicating_.wait();
  // Whole gradients are averaged here where nothing is sharded, others when they were packed.
  double scale = unit_.accumulates_unsharded() && unit_.shards() == 1 ? after_ : 1;
  if (!target_.is_same(unit_.gradient) && unit_.gradient.is_cpu() && !target_.is_cpu()) {
    if (first_ && scale == 1 && unit_.gradient.is_pinned()) {
      unit_.context.to_host.add(unit_.gradient, target_);
    } else {
      unit_.context.to_host.wait();
      scaled_add(unit_.gradient, target_, scale, first_);
    }
  } else if (!target_.is_same(unit_.gradient))
    scaled_add(unit_.gradient, target_, scale, first_);
  else if (scale != 1)
    unit_.gradient.mul_(scale);
  target_ = Tensor();
}

void GradientReducer::end_step() {
  finish();
  finish_replication();
  if (!fresh_) return;
  unit_.gradient_memory.take();
  unit_.gradient.zero_();
}

void GradientReducer::wait_all() {
  exchanging_.wait();
  replicating_.wait();
  exchanging_ = Work();
}

void GradientReducer::abandon() {
  packed_ = received_ = target_ = Tensor();
  unpacked_.clear();
  reducing_ = writes_ = false;
  begin_step();
  for (UnitState::Parameter& p : unit_.parameters) {
    p.placed = false;
    p.accumulated_grad = Tensor();
    p.variable.mutable_grad() = Tensor();
  }
}

}  // namespace meshwright::detail
