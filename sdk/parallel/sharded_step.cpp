// A sharded model's step: hooks, prefetch, reduction and clipping.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "gradients.h"
#include "meshwright/error.h"
#include "meshwright/parallel/expert_parallel.h"
#include "meshwright/parallel/tensor_parallel.h"
#include "sdk/base/read_by_host.h"
#include "sdk/base/text.h"
#include "sdk/nn/stage_state.h"
#include "sharded_model.h"
#include "unit.h"

namespace meshwright::detail {

using at::Tensor;

void ShardedModel::attach(Unit& unit) {
  HookHost& host = *HookHost::of(*unit.module);
  host.before_forward.push_back(
      [this, u = &unit](torch::nn::Module&, TensorRefs& inputs) { before_forward(*u, inputs); });
  host.after_forward.push_back(
      [this, u = &unit](torch::nn::Module&, TensorRefs& outputs) { after_forward(*u, outputs); });
}

// The two ends of a pipeline may lie on one rank, with a root each around the same module.
bool ShardedModel::passes_through(const Unit& unit) {
  const StagePart& part = stage_of_thread();
  return (!unit.first_stage || part.first) && (!unit.last_stage || part.last);
}

// Of two units of one module the small one first: under shared memory the large one is used where
// it came, and makes room for the gathers behind it.
void ShardedModel::unshard(Unit& unit) {
  Unit& large = unit.around != nullptr ? *unit.around : unit;
  if (large.beside != nullptr) large.beside->unshard();
  large.unshard();
}

void ShardedModel::before_forward(Unit& unit, TensorRefs& inputs) {
  if (!passes_through(unit)) return;
  unit.done = false;
  unshard(unit);
  unit.wait_for_unshard();
  if (unit.around != nullptr) return;  // the other unit of the module does the rest
  if (!order_known_) {
    // Passes of a pipeline run through one stage each: all of the order is known after the step.
    if (!context_.told && !order_.empty() && order_.front() == &unit) {
      order_known_ = true;
    } else if (position_[unit.index] == SIZE_MAX) {
      position_[unit.index] = order_.size();
      order_.push_back(&unit);
      passes_[unit.index] = pass_;
    }
  }
  if (!recomputing()) prefetch_forward(unit);
  if (unit.mp().cast_forward_inputs)
    for (Tensor* input : inputs)
      if (input->defined() && at::isFloatingType(input->scalar_type()) &&
          input->scalar_type() != unit.compute_type())
        *input = input->to(unit.compute_type());
  if (unit.counts_passes()) follow_inputs(unit, inputs);
  if (context_.world->trace().enabled) forward_began_ = context_.world->trace().mark();
}

// A tensor may be the input of several modules: hooks go to this one's own view of it.
void ShardedModel::follow_inputs(Unit& unit, TensorRefs& inputs) {
  unit.pass = nullptr;
  if (!c10::GradMode::is_enabled()) return;
  unit.pass = std::make_shared<Pass>();
  for (Tensor* input : inputs) {
    if (!input->defined() || !input->requires_grad()) continue;
    *input = input->view_as(*input);
    ++unit.pass->inputs;
    input->register_hook(
        [u = &unit, pass = unit.pass](const Tensor&) { u->gradient_passed(*pass); });
  }
  // Gradients go no further than to the units within, each at its time: the end of the backward is
  // that of this one, too.
  if (unit.pass->inputs == 0 && unit.encloses) unit.pass->inputs = 1;
}

void ShardedModel::after_forward(Unit& unit, TensorRefs& outputs) {
  if (!passes_through(unit)) return;
  if (context_.world->trace().enabled && unit.module_list >= 0 && unit.around == nullptr)
    context_.world->trace().span(Trace::Lane::compute, "forward " + unit.name, forward_began_,
                                 context_.world->trace().mark());
  // The outermost unit's outputs only: between units a wider output would meet the next module's
  // narrow weights. Hidden states go to the next stage in the dtype of messages.
  bool casts = unit.module == model_.get() && unit.output_type() != unit.compute_type() &&
               stage_of_thread().last;
  bool training = c10::GradMode::is_enabled();
  unit.has_backward = false;
  for (Tensor* output : outputs) {
    if (!output->defined() || !at::isFloatingType(output->scalar_type())) continue;
    if (casts && output->scalar_type() != unit.output_type())
      *output = output->to(unit.output_type());
    if (!training || !output->requires_grad()) continue;
    unit.has_backward = true;
    output->register_hook([this, u = &unit, pass = unit.pass](const Tensor&) {
      before_backward(*u);
      if (pass) u->open(*pass);
    });
  }
  unit.pass = nullptr;
  // Without a backward nothing would free them later; where a layer is recomputed it follows at
  // once.
  if (!whole_ && ((unit.reshards() && !recomputing()) || !training)) unit.reshard();
}

// A forward within a backward: of a unit inside a layer that activation checkpointing runs again.
bool ShardedModel::recomputing() const {
  return std::any_of(units_.begin(), units_.end(),
                     [](const auto& unit) { return unit->in_backward(); });
}

void ShardedModel::before_backward(Unit& unit) {
  if (unit.in_backward()) return;
  if (context_.world->trace().enabled) unit.backward_began = context_.world->trace().mark();
  unit.before_backward();
  prefetch_backward(unit);
}

// What a pass of a pipeline gathers for another one is dropped when that begins.
bool ShardedModel::same_pass(const Unit& unit, const Unit& other) const {
  return !context_.told || passes_[unit.index] == passes_[other.index];
}

bool ShardedModel::chained(const Unit& unit, size_t index) const {
  if (unit.module_list < 0 || index >= units_.size()) return false;
  const Unit& other = *units_[index];  // `around`: comes with the other one of its module
  return other.module_list == unit.module_list &&
         (other.around != nullptr || same_pass(unit, other));
}

void ShardedModel::prefetch_forward(const Unit& unit) {
  const ShardingPolicy& policy = context_.policy;
  if (!policy.prefetch.enabled || whole_) return;
  if (policy.prefetch.chains) {
    int64_t left = policy.prefetch.forward;
    for (size_t next = unit.index + 1; left > 0 && chained(unit, next); ++next) {
      if (units_[next]->around != nullptr) continue;
      unshard(*units_[next]);
      --left;
    }
    return;
  }
  // Another stage's pass begins with units that the outermost one does not know.
  if (context_.told && unit.module_list < 0) return;
  size_t next = position_[unit.index] + 1;
  if (order_known_ && next < order_.size() && same_pass(unit, *order_[next]))
    unshard(*order_[next]);
}

// Gradients end where nothing before them trains: what ran there is not needed again.
void ShardedModel::unshard_for_backward(Unit& unit) {
  if (!unit.done && unit.has_backward) unit.unshard();
}

void ShardedModel::prefetch_backward(const Unit& unit) {
  const ShardingPolicy& policy = context_.policy;
  if (!policy.prefetch.enabled || whole_ || unit.around != nullptr) return;
  if (policy.prefetch.chains) {
    int64_t left = policy.prefetch.backward;
    for (size_t at = unit.index; left > 0 && at > 0 && chained(unit, at - 1); --at) {
      Unit& before = *units_[at - 1];
      if (before.around != nullptr) continue;
      unshard_for_backward(before);
      --left;
    }
    return;
  }
  // The root's parameters stay until its backward ends, and what ran before the first unit is the
  // root.
  size_t at = position_[unit.index];
  if (unit.module_list < 0 && at == 0) {
    if (!context_.told && order_.size() > 1) unshard_for_backward(*order_.back());
  } else if (at > 0 && at != SIZE_MAX && same_pass(unit, *order_[at - 1]) &&
             order_[at - 1]->module_list >= 0) {
    unshard_for_backward(
        *order_[at - 1]);  // a unit inside another may end after what ran before it
  }
}

void ShardedModel::begin_step() {
  if (in_step_)
    for (auto& unit : units_) unit->abandon();
  in_step_ = true;
  context_.told = false;
  context_.turn = 0;
  for (auto& unit : units_) {
    unit->begin_step();
    if (!unit->once_a_step) continue;
    unit->settle();  // of passes outside of steps
    unit->hold(true);
  }
}

void ShardedModel::settle() {
  for (auto& unit : units_) unit->settle();
}

void ShardedModel::begin_micro_batch(GradientSync sync) {
  settle();
  const bool told = sync == GradientSync::when_told;
  context_.told = context_.told || told;
  context_.synchronise =
      sync == GradientSync::reduce || (!told && context_.policy.reduction.every_micro_batch);
  if (!told) return;
  ++pass_;
  for (auto& unit : units_) unit->done = false;  // each backward gathers ahead anew
}

std::vector<Unit*> ShardedModel::meant(const std::vector<std::string>& names) const {
  std::vector<Unit*> out;
  for (size_t i : units_meant(names, units_.size(), [&](size_t unit, const std::string& name) {
         return text::lies_in(units_[unit]->name, name);
       }))
    out.push_back(units_[i].get());
  return out;
}

std::vector<std::string> ShardedModel::unit_names() const {
  std::vector<std::string> out;
  for (const auto& unit : units_)
    if (!unit->parameters().empty()) out.push_back(unit->name);
  return out;
}

void ShardedModel::hold_units(const std::vector<std::string>& units, bool held) {
  for (Unit* unit : meant(units))
    if (!(unit->once_a_step && in_step_) && (!held || !unit->reshards())) unit->hold(held);
}

void ShardedModel::reduce_units(const std::vector<std::string>& units) {
  check_told(in_step_ && context_.told);
  for (Unit* unit : meant(units)) unit->reduce_told();
}

void ShardedModel::check_reduced() const {
  if (!context_.told) return;
  std::string names;
  for (const auto& unit : units_)
    if (unit->waits()) names += (names.empty() ? "unit " : ", ") + unit->name;
  if (!names.empty()) throw not_reduced(names);
}

void ShardedModel::end_step() {
  end_step_deferred();
  context_.to_host.wait();
}

void ShardedModel::end_step_deferred() {
  for (auto& unit : units_) unit->hold(false);
  settle();
  check_reduced();
  check_own_gradients();
  for (GradientReducer* reducer : context_.turns) reducer->reduce_late();
  for (auto& unit : units_) unit->end_step();
  context_.to_host.order();
  if (context_.groups.tensor_parallel)
    context_.groups.tensor_parallel->sum_partial_gradients(parameters_, widest_reduce());
  order_known_ = true;
  in_step_ = false;
}

// Gradients of all units that are partial sums over tp go together, and none of them shall be
// rounded more than its unit says.
at::ScalarType ShardedModel::widest_reduce() const {
  at::ScalarType out = units_.front()->reduce_type();
  for (const auto& unit : units_) out = c10::promoteTypes(out, unit->reduce_type());
  return out;
}

bool ShardedModel::values_written(const ValuesWritten& written) {
  frozen_stays_ = written.by == ValuesWritten::By::optimizer;
  return false;
}

// Gathers of whole parameters begin at once, two at a time, in the order in which they will be
// used.
void ShardedModel::after_optimizer_step() {
  // Who calls without a word may have written everything.
  const bool frozen_stays = std::exchange(frozen_stays_, false);
  for (auto& unit : units_) unit->refresh(frozen_stays);
  const ShardingPolicy& policy = context_.policy;
  if (!policy.keeps_parameters()) return;
  std::vector<Unit*> order = order_;
  if (!order_known_ || order.size() != units_.size()) {
    order.clear();
    for (auto& unit : units_) order.push_back(unit.get());
    std::stable_partition(order.begin(), order.end(), [](const Unit* unit) {
      return unit->module_list < 0;
    });  // the outermost runs first
  }
  for (size_t i = 0; i < order.size(); ++i) {
    if (policy.overlap_gather && context_.groups.shard->size() > 1) {
      if (i == 2) break;
      order[i]->unshard();
    } else {
      order[i]->wait_for_unshard();
    }
  }
}

// Experts are cut over groups of their own.
std::vector<GradientSet> ShardedModel::gradient_sets() const {
  const auto& [tensor_parallel, expert_parallel] =
      std::tie(context_.groups.tensor_parallel, context_.groups.expert_parallel);
  std::vector<std::shared_ptr<Group>> groups{context_.groups.shard};
  std::vector<GradientSet> sets;
  const std::vector<std::string>& copies = context_.groups.copies;
  if (!tensor_parallel && !expert_parallel && copies.empty()) {
    sets.push_back({{}, groups});
    for (const FlatParameterGroup& update : updates_) sets[0].gradients.push_back(update.grads);
    return sets;
  }
  std::vector<ParallelParameter> others;
  GradientSet experts, uncounted{.counted = false};
  for (const ParallelParameter& p : parameters_) {
    if (std::find(copies.begin(), copies.end(), p.name) != copies.end()) {
      if (p.grad.defined()) uncounted.gradients.push_back(p.grad.view({-1}));
    } else if (!is_expert(p.name))
      others.push_back(p);
    else if (p.grad.defined())
      experts.gradients.push_back(p.grad.view({-1}));
  }
  if (tensor_parallel) {
    sets = tensor_parallel->gradient_sets(others, groups);
  } else {
    sets.push_back({{}, groups});
    for (const ParallelParameter& p : others)
      if (p.grad.defined()) sets[0].gradients.push_back(p.grad.view({-1}));
  }
  if (expert_parallel) {
    experts.groups = {expert_parallel->ep_shard(), expert_parallel->ep()};
    sets.push_back(std::move(experts));
  }
  if (!uncounted.gradients.empty()) sets.push_back(std::move(uncounted));
  return sets;
}

double ShardedModel::clip(double max_norm, double scale, double* left) {
  check_reduced();
  const ShardingPolicy& policy = context_.policy;
  if (policy.reduction.average == ReductionPolicy::Average::with_clipping)
    scale /= static_cast<double>(context_.averaged());
  double norm = clip_or_leave(gradient_sets(), max_norm, scale, context_.world->device(),
                              context_.groups.pipeline, left);
  if (policy.checks.reduced && !std::isfinite(norm) && std::isfinite(scale)) {
    Nonfinite mine;
    for (const ParallelParameter& p : parameters_)
      if (mine.parameter.empty()) mine = Nonfinite::in(p.name, p.grad);
    throw_nonfinite(mine, "after the reduction", "checks.reduced");
  }
  return norm;
}

void ShardedModel::check_own_gradients() {
  if (!context_.policy.checks.own) return;
  throw_nonfinite(std::exchange(context_.own_nonfinite, {}), "before the reduction", "checks.own");
}

// Collective. All ranks name the same parameter, the first one on the first rank that has one, and
// that rank. Does nothing where no rank has one: a norm can be infinite because the squares of
// finite gradients are.
void ShardedModel::throw_nonfinite(const Nonfinite& mine, const char* when, const char* field) {
  const std::shared_ptr<Group> everyone = context_.world->everyone();
  // The smallest of a maximum of negatives.
  double own = mine.parameter.empty() ? -HUGE_VAL : -static_cast<double>(everyone->rank());
  Tensor first =
      at::full({1}, own, at::TensorOptions().dtype(at::kDouble).device(context_.world->device()));
  everyone->all_reduce(first, ReduceOp::max, /*control=*/true).wait();
  first = read_by_host(*everyone, first);
  if (!std::isfinite(first.item<double>())) return;
  const auto rank = static_cast<int64_t>(-first.item<double>());
  // Ranks of a pipeline hold other parameters: that one says which.
  std::string what = mine.parameter + (mine.infinite ? " is infinite " : " is NaN ");
  what.resize(512, '\0');
  Tensor text = at::empty({512}, at::TensorOptions().dtype(at::kByte));
  std::copy(what.begin(), what.end(), text.mutable_data_ptr<uint8_t>());
  text = text.to(context_.world->device());
  everyone->broadcast(text, rank).wait();
  text = read_by_host(*everyone, text);
  what = reinterpret_cast<const char*>(text.const_data_ptr<uint8_t>());
  what = "rank " + std::to_string(rank) + ": the gradient of " + what + when;
  const PolicyOptions& options = context_.policy.options;
  std::string checks;
  for (const char* check : {"checks.reduced", "checks.own"})
    if (const std::string key = options.of(check); !key.empty()) checks += key + " and ";
  throw Error(ErrorCode::nonfinite, what + "; the optimizer has not used it")
      .key(options.of(field))
      .help(
          "lower optimizer.lr, raise lr_scheduler.lr_warmup_steps, or set optimizer.max_grad_norm "
          "= 1.0")
      .help("to go on regardless, set " + checks + "run.stop_on_nonfinite to false");
}

}  // namespace meshwright::detail
