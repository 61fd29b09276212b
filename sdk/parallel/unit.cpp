#include "unit.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <utility>

#include "meshwright/error.h"
#include "meshwright/parallel/tensor_parallel.h"
#include "sdk/comm/joint_collectives.h"
#include "sdk/nn/buffers.h"
#include "unit_state.h"

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

// The largest absolute value is NaN where one of them is.
Nonfinite Nonfinite::in(const std::string& parameter, const at::Tensor& gradient) {
  if (!gradient.defined() || gradient.numel() == 0) return {};
  auto largest = gradient.abs().max().item<double>();
  return std::isfinite(largest) ? Nonfinite() : Nonfinite{parameter, std::isinf(largest)};
}

namespace {

UnitLayout layout_of(const UnitSpec& spec, const UnitContext& context,
                     const UnitSharding& sharding) {
  if (spec.layout != nullptr) {  // as planned
    std::vector<UnitMember> members;
    for (const auto& [name, variable] : spec.parameters)
      members.push_back({name, variable.requires_grad()});
    check_unit_layout(spec.name, *spec.layout, members, sharding.shard->size());
    for (size_t i = 0; i < spec.parameters.size(); ++i) {
      const auto& [name, variable] = spec.parameters[spec.layout->given(i)];
      if (variable.sizes() != at::IntArrayRef(spec.layout->parameters()[i].sizes))
        throw Error(ErrorCode::bad_module, "the plan of unit \"" + spec.name + "\" has the sizes " +
                                               sizes_text(spec.layout->parameters()[i].sizes) +
                                               " for " + name + ", the model " +
                                               sizes_text(variable.sizes()))
            .help(
                "make the outline from the model itself (outline_of), or give both the same "
                "shapes");
    }
    return *spec.layout;
  }
  const ShardingPolicy& policy = context.policy;
  const ShardGroups& groups = context.groups;
  const bool flat = policy.layout == ShardLayout::flat;
  const int64_t ranks = sharding.shard->size();
  std::vector<UnitParameter> parameters;
  for (const auto& [full_name, variable] : spec.parameters) {
    if (variable.dim() == 0)
      throw Error(ErrorCode::bad_module,
                  "parameter " + full_name + " has no dimension, so its rows cannot be shared out")
          .help("give it the shape [1]");
    UnitParameter& p = parameters.emplace_back(
        UnitParameter{full_name, variable.sizes().vec(), variable.requires_grad()});
    const TensorParallel::Cut* cut =
        flat && groups.tensor_parallel ? groups.tensor_parallel->find(full_name) : nullptr;
    if (cut != nullptr)
      mark_cut(p, cut->whole, static_cast<size_t>(cut->dim),
               groups.tensor_parallel->group()->size());
  }
  if (flat) return UnitLayout::flat(std::move(parameters), ranks, policy.keeps_parameters());
  return UnitLayout::rows(std::move(parameters), ranks, static_cast<size_t>(sharding.dim),
                          sharding.axis);
}

}  // namespace

UnitState::UnitState(UnitContext& shared, const UnitSpec& spec)
    : context(shared),
      name(spec.name),
      reshard(spec.reshard_after_forward),
      own_groups(spec.sharding.has_value()),
      sharding(spec.sharding.value_or(UnitSharding{shared.groups.shard, shared.groups.shard_axis})),
      replicate(spec.sharding ? nullptr : shared.groups.replicate),
      mp(spec.mp.value_or(shared.policy.precision.mp)),
      param(scalar_type(mp.param)),
      reduce(scalar_type(mp.reduce)),
      output(scalar_type(mp.output)),
      layout(layout_of(spec, shared, sharding)) {
  for (size_t i = 0; i < spec.parameters.size(); ++i) {
    const auto& [full_name, variable] = spec.parameters[layout.given(i)];
    Parameter p;
    p.name = full_name;
    p.variable = variable;
    p.sizes = variable.sizes().vec();
    p.count = variable.numel();
    p.offset = layout.offset(i);
    p.trainable = variable.requires_grad();
    (p.trainable ? storage : frozen_storage) = variable.scalar_type();
    trainable_count += p.trainable;
    parameters.push_back(std::move(p));
  }
  for (int64_t r = 0; r < shards(); ++r) slices.push_back(layout.slices(r));
  joins_parts = !layout.in_place() && has_joint_collectives(group()) && parts_follow();
  const bool all_train = static_cast<size_t>(trainable_count) == parameters.size();
  if (trainable_count == 0 && !all_train) storage = frozen_storage;
  if (all_train) frozen_storage = storage;
  const bool has_main = context.policy.precision.main_weights.has_value() &&
                        (trainable_count > 0 || !context.frozen_apart);
  main = has_main ? scalar_type(*context.policy.precision.main_weights) : storage;
  frozen_beside = context.frozen_apart && !context.policy.keeps_parameters() &&
                  trainable_count > 0 && !all_train &&
                  (frozen_storage != storage || frozen_storage != main);
  // What each micro-batch adds is a sum in the reduce dtype: so is the sum of all of them.
  const bool adds_up = context.policy.layout == ShardLayout::rows &&
                       context.policy.reduction.every_micro_batch && wider(reduce, storage);
  gradient_type = context.policy.precision.main_gradients
                      ? scalar_type(*context.policy.precision.main_gradients)
                  : adds_up ? reduce
                            : storage;
}

at::Tensor UnitState::sent(const ShardSlice& slice) const {
  if (frozen_beside && slice.at >= layout.trainable_size())
    return frozen.narrow(0, slice.at - layout.trainable_size(), slice.count);
  return sent().narrow(0, slice.at, slice.count);
}

void UnitState::bring_sent(const at::Tensor& to) const {
  to.narrow(0, 0, shard_elements()).copy_(sent(), /*non_blocking=*/true);
  if (frozen_beside)
    to.narrow(0, shard_elements(), frozen_elements()).copy_(frozen, /*non_blocking=*/true);
}

bool UnitState::parts_follow() const {
  for (int64_t r = 0; r < shards(); ++r) {
    const std::vector<ShardSlice>& mine = slices[static_cast<size_t>(r)];
    if (mine.size() != parameters.size()) return false;
    for (const ShardSlice& slice : mine)
      if (slice.from != r * slice.count ||
          slice.count * shards() != parameters[slice.parameter].count)
        return false;
  }
  return true;
}

}  // namespace meshwright::detail
