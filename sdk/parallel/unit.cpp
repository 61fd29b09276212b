#include "unit.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "meshwright/error.h"
#include "sdk/nn/buffers.h"

namespace meshwright::detail {

using at::Tensor;

namespace {

// After autograd took a gradient, or would have if there were one.
struct GradientHook : torch::autograd::PostAccumulateGradHook, GradientKeeper {
  GradientHook(Unit* u, size_t p) : unit(u), parameter(p) {}
  void operator()(const Tensor&) override { unit->gradient_ready(parameter); }
  std::optional<GradientPlace> place() override { return unit->gradient_place(parameter); }
  Unit* unit;
  size_t parameter;
};

}  // namespace

GradientKeeper::~GradientKeeper() = default;

namespace {

GradientKeeper* keeper_of(const Tensor& parameter) {
  return dynamic_cast<GradientKeeper*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
}

}  // namespace

bool has_gradient_keeper(const Tensor& parameter) { return keeper_of(parameter) != nullptr; }

GradientKeeper* gradient_keeper(const Tensor& parameter) {
  if (!torch::autograd::impl::hooks(parameter).empty()) return nullptr;
  // autograd::grad(), or a backward towards some tensors only.
  const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
  if (wanted != nullptr && !wanted->empty()) return nullptr;
  return keeper_of(parameter);
}

Unit::Unit(UnitContext& context, const UnitSpec& spec)
    : name(spec.name),
      module(spec.module),
      module_list(spec.module_list),
      first_stage(spec.first_stage),
      last_stage(spec.last_stage),
      once_a_step(spec.once_a_step),
      state_(context, spec),
      unsharded_(state_),
      reducer_(state_),
      frozen_(static_cast<size_t>(state_.trainable_count) < state_.parameters.size()) {}

void Unit::adopt(const Tensor& shard, const Tensor& gradient, const Tensor& frozen) {
  c10::NoGradGuard no_grad;
  state_.shard = shard;
  state_.frozen = frozen;
  state_.gradient = gradient;
  name_memory(shard, "values of ", name);
  if (state_.frozen_beside) name_memory(frozen, "frozen values of ", name);
  name_memory(gradient, "gradients of ", name);
  shard.zero_();
  if (frozen.defined()) frozen.zero_();
  for (const ShardSlice& slice : state_.slices[static_cast<size_t>(state_.me())]) {
    const Tensor& variable = state_.parameters[slice.parameter].variable;
    if (!variable.is_meta())
      copy(state_.sent(slice), 0, variable.detach().contiguous().view({-1}), slice.from,
           slice.count);
  }
  if (!state_.keeps_unsharded() && state_.main != state_.storage)
    state_.model_shard = shard.to(state_.storage);
  unsharded_.take_over();
  for (size_t i = 0; i < state_.parameters.size(); ++i)
    if (state_.parameters[i].trainable)
      torch::autograd::impl::set_post_acc_grad_hooks(state_.parameters[i].variable,
                                                     std::make_unique<GradientHook>(this, i));
}

void Unit::adopt_whole() {
  c10::NoGradGuard no_grad;
  int64_t each = trainable_size();
  Tensor slice = unsharded_.allocate_whole().narrow(0, state_.me() * each, each);
  adopt(
      state_.main == state_.storage ? slice : at::zeros({each}, slice.options().dtype(state_.main)),
      reducer_.allocate());
}

void Unit::lend_gradient_memory() {
  if (trainable_size() == 0) return;
  state_.gradient_memory = ReturnableMemory(
      gradient(),
      "gradients of unit \"" + name +
          "\" were used between the beginning of a step and their first reduction in it: "
          "there is no memory for them in between");
  state_.gradient_memory.give_back();
}

void Unit::before_backward() {
  if (in_backward_) return;
  in_backward_ = true;
  taken_ = false;
  ++backwards_;
  passing_ = 0;
  waiting_ = state_.trainable_count;
  for (Parameter& p : state_.parameters) p.arrived = false;
  wait_for_unshard();
}

void Unit::open(Pass& pass) {
  if (!in_backward_ || pass.backward != 0 || pass.inputs == 0) return;
  pass.backward = backwards_;
  ++passing_;
}

void Unit::gradient_passed(Pass& pass) {
  if (--pass.inputs > 0 || !in_backward_ || pass.backward != backwards_) return;
  --passing_;
  end_if_over();
}

void Unit::end_if_over() {
  if (waiting_ > 0 || (beside != nullptr && beside->in_backward_)) return;
  if (passing_ == 0)
    end_backward();
  else
    take_gradients();
}

void Unit::gradient_ready(size_t index) {
  c10::NoGradGuard no_grad;
  Parameter& p = state_.parameters[index];
  UnitContext& context = state_.context;
  if (context.policy.checks.own && context.own_nonfinite.parameter.empty())
    context.own_nonfinite = Nonfinite::in(p.name, p.variable.grad());
  if (state_.accumulates_unsharded()) reducer_.absorb(p);
  // A backward that never passed the unit's output (autograd::backward on a parameter itself) is
  // settled at the end of the step.
  if (!in_backward_) return;
  // Recomputed modules bring one each for a parameter that they share.
  if (std::exchange(p.arrived, true)) return;
  --waiting_;
  end_if_over();
}

std::optional<GradientPlace> Unit::gradient_place(size_t index) {
  return in_backward_ && !taken_ ? reducer_.place(index) : std::nullopt;
}

void Unit::end_backward() {
  c10::NoGradGuard no_grad;
  const UnitContext& context = state_.context;
  Trace& trace = context.world->trace();
  if (trace.enabled && module_list >= 0 && around == nullptr)
    trace.span(Trace::Lane::compute, "backward " + name, backward_began, trace.mark());
  waiting_ = passing_ = 0;
  in_backward_ = false;
  done = true;
  if (around != nullptr && around->in_backward_) around->end_if_over();
  if (taken_) {
    reshard();
  } else {
    take_gradients();
  }
}

// Reduces in a micro-batch that does, else accumulates. What is not needed any more is freed before
// the reduction takes memory of its own.
void Unit::take_gradients() {
  if (std::exchange(taken_, true)) return;
  c10::NoGradGuard no_grad;
  const UnitContext& context = state_.context;
  if (state_.accumulates_unsharded()) {
    if (context.synchronise && context.policy.reduction.overlap) reducer_.reduce_in_turn();
  } else if (state_.trainable_count == 0) {
    if (!in_backward_) reshard();
  } else if (context.synchronise) {
    reducer_.pack();
    if (!in_backward_) reshard();
    reducer_.start();
  } else {
    reducer_.accumulate();
    if (!in_backward_) reshard();
  }
}

void Unit::settle() {
  if (in_backward_) end_backward();
  // What came outside of the unit's own backward adds up too.
  if (state_.context.told && !state_.accumulates_unsharded()) reducer_.accumulate();
  if (state_.held) return;
  if (!state_.keeps_unsharded())
    unsharded_.cancel();  // gathered ahead and never used; the next step's values will be others
  reshard();
}

void Unit::hold(bool held) {
  if (state_.keeps_unsharded() || state_.held == held) return;
  state_.held = held;
  if (held) {
    unsharded_.leave_shared_memory();
    return;
  }
  // Of a run that is over: what has not come in its last backward comes no more.
  if (in_backward_ && state_.context.told) end_backward();
  if (in_backward_) return;
  unsharded_.cancel();
  free();
}

void Unit::reduce_told() {
  if (state_.trainable_count == 0) return;
  c10::NoGradGuard no_grad;
  if (in_backward_) end_backward();
  if (state_.accumulates_unsharded()) {
    reducer_.reduce_once();
  } else {
    reducer_.pack();
    reducer_.start();
  }
}

void Unit::abandon() {
  try {
    unsharded_.wait_for_gather();
    reducer_.wait_all();
  } catch (const Error&) {
    // The step failed already; the groups are of no use any more, and the next call will say so.
  }
  try {
    state_.context.to_host.wait();
  } catch (const std::exception&) {  // nor is the device
  }
  unsharded_.forget();
  state_.held = false;
  free();
  in_backward_ = false;
  state_.context.reducing = nullptr;
  state_.context.own_nonfinite = {};
  reducer_.abandon();
}

Tensor Unit::local(size_t parameter) const {
  const Parameter& p = state_.parameters[parameter];
  const int64_t count = layout().region(parameter, state_.me()).count(),
                at = layout().at(parameter, state_.me());
  if (state_.frozen_beside && !p.trainable)
    return state_.frozen.narrow(0, count == 0 ? 0 : at - trainable_size(), count);
  return shard().narrow(0, at, count);
}

Tensor Unit::full_tensor(size_t parameter) {
  c10::NoGradGuard no_grad;
  const Parameter& p = state_.parameters[parameter];
  if (state_.keeps_unsharded() && !p.trainable) return resident(p).clone();
  const bool beside = state_.frozen_beside && !p.trainable;
  const Tensor& own = beside ? state_.frozen : shard();
  int64_t n = state_.shards(), each = own.numel(), before = beside ? trainable_size() : 0;
  Tensor out = at::zeros({p.count}, own.options()), all = own;
  if (n > 1) {
    Tensor mine = own.to(state_.device()), gathered = at::empty({each * n}, mine.options());
    group().all_gather(mine, gathered).wait();
    copy(gathered, state_.me() * each, mine, 0, each);
    all = gathered;
  }
  for (int64_t r : c10::irange(n))
    for (const ShardSlice& slice : state_.slices[static_cast<size_t>(r)])
      if (slice.parameter == parameter)
        copy(out, slice.from, all, r * each + slice.at - before, slice.count);
  return out.view(p.sizes);
}

}  // namespace meshwright::detail
