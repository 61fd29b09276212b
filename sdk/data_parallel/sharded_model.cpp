// The model over its units: hooks, prefetch, the step, and what the loop reads.
#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "meshwright/error.h"
#include "meshwright/nn/module.h"
#include "meshwright/parallel/expert_parallel.h"
#include "meshwright/parallel/gradients.h"
#include "meshwright/parallel/tensor_parallel.h"
#include "sdk/comm/shared_memory.h"
#include "unit.h"

namespace meshwright {

namespace {

using at::Tensor;
using detail::Unit;

class ShardedModel final : public ParallelModel {
 public:
  ShardedModel(std::shared_ptr<torch::nn::Module> model, std::vector<UnitSpec> specs,
               ShardedPolicy policy, std::shared_ptr<World> world);

  void begin_step() override;
  void begin_micro_batch(GradientSync sync) override;
  void end_step() override;
  const std::vector<ParallelParameter>& parameters() const override { return parameters_; }
  const std::vector<FlatParameterGroup>& update_groups() const override { return updates_; }
  void after_optimizer_step() override;
  double clip_grad_norm(double max_norm, double scale) override;
  Tensor full_tensor(std::string_view name) override;
  void summon_full_parameters(const std::function<void()>& body) override;
  std::shared_ptr<Group> data_group() override;
  std::shared_ptr<TensorParallel> tensor_parallel() const override {
    return context_.policy.tensor_parallel;
  }

 private:
  void allocate();
  void reserve();
  void rotate();
  void describe();
  void attach(Unit& unit);
  void before_forward(Unit& unit, TensorRefs& inputs);
  void after_forward(Unit& unit, TensorRefs& outputs);
  void before_backward(Unit& unit);
  void prefetch_forward(const Unit& unit);
  void prefetch_backward(const Unit& unit);
  void settle();
  void check_own_gradients();
  void throw_nonfinite(const detail::Nonfinite& mine, const char* when, const char* option);
  std::vector<GradientSet> gradient_sets() const;
  bool recomputing() const;
  at::ScalarType widest_reduce() const;
  bool is_expert(std::string_view parameter) const;
  void complete(ParallelParameter& parameter) const;
  Tensor join(std::string_view name, const Tensor& local) const;

  std::shared_ptr<torch::nn::Module> model_;
  detail::UnitContext context_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<Unit*> order_;      // of the first forward
  std::vector<size_t> position_;  // in order_, by unit index
  bool order_known_ = false, in_step_ = false, whole_ = false;
  int64_t forward_began_ = 0;
  std::vector<ParallelParameter> parameters_;
  std::vector<FlatParameterGroup> updates_;
};

ShardedModel::ShardedModel(std::shared_ptr<torch::nn::Module> model, std::vector<UnitSpec> specs,
                           ShardedPolicy policy, std::shared_ptr<World> world)
    : model_(std::move(model)) {
  context_.policy = std::move(policy);
  context_.world = std::move(world);
  context_.pool = std::make_shared<detail::BufferPool>(context_.world->device());
  std::set<c10::TensorImpl*> owned;
  for (const UnitSpec& spec : specs) {
    std::optional<at::ScalarType> storage;
    for (const auto& [name, tensor] : spec.parameters) {
      if (!owned.insert(tensor.unsafeGetTensorImpl()).second)
        throw Error(ErrorCode::bad_module, "parameter " + name + " is shared between two units")
            .help("put both uses into one unit");
      if (!at::isFloatingType(tensor.scalar_type()))
        throw Error(ErrorCode::bad_module, "parameter " + name + " is not of a floating type")
            .help("make it a buffer");
      if (storage.value_or(tensor.scalar_type()) != tensor.scalar_type())
        throw Error(ErrorCode::bad_module,
                    "parameter " + name + " has another dtype than those before it in unit \"" +
                        spec.name + "\"")
            .help("give all parameters one storage dtype (model.torch_dtype)")
            .help("or register a unit rule that separates them (dtype_aware_rule)");
      storage = tensor.scalar_type();
    }
  }
  for (const UnitSpec& spec : specs) {
    if (HookHost::of(*spec.module) == nullptr)
      throw Error(ErrorCode::bad_module,
                  "unit \"" + spec.name + "\" is a " + spec.module->name() +
                      " without hooks, so its parameters cannot be gathered in time")
          .help(
              "declare the module with MESHWRIGHT_MODULE(...) in place of TORCH_MODULE(...), and "
              "create it through that holder");
    units_.push_back(std::make_unique<Unit>(context_, spec));
    units_.back()->index = units_.size() - 1;
  }
  position_.assign(units_.size(), SIZE_MAX);
  allocate();
  describe();
  reserve();
  for (auto& unit : units_) attach(*unit);
}

// One tensor of values and one of gradients a storage dtype; units lie one after the other.
void ShardedModel::allocate() {
  at::TensorOptions options = at::TensorOptions().device(
      context_.policy.cpu_offload ? at::Device(at::kCPU) : context_.world->device());
  if (context_.policy.cpu_offload && context_.policy.pin_memory &&
      !context_.world->device().is_cpu())
    options = options.pinned_memory(true);
  if (context_.policy.whole_parameters) {
    for (auto& unit : units_) {
      unit->adopt_whole();
      if (unit->trainable_size() > 0) updates_.push_back({unit->shard(), unit->gradient()});
    }
    return;
  }
  std::map<std::pair<at::ScalarType, at::ScalarType>, std::vector<Unit*>> by_dtype;
  for (auto& unit : units_)
    by_dtype[{unit->main_type(), unit->gradient_type()}].push_back(unit.get());
  for (const auto& [dtypes, units] : by_dtype) {
    int64_t size = 0, trainable = 0;
    for (Unit* unit : units) {
      size += unit->shard_size();
      trainable += unit->trainable_size();
    }
    Tensor values = at::empty({size}, options.dtype(dtypes.first)),
           grads = at::zeros({trainable}, options.dtype(dtypes.second));
    // A unit's frozen part follows its own trainable one, so with frozen parameters every unit is a
    // group of its own.
    bool together = size == trainable;
    int64_t v = 0, g = 0;
    for (Unit* unit : units) {
      Tensor shard = values.narrow(0, v, unit->shard_size()),
             gradient = grads.narrow(0, g, unit->trainable_size());
      unit->adopt(shard, gradient);
      if (!together && unit->trainable_size() > 0)
        updates_.push_back({shard.narrow(0, 0, unit->trainable_size()), gradient});
      v += unit->shard_size();
      g += unit->trainable_size();
    }
    if (together) updates_.push_back({values, grads});
  }
}

// Room in shared memory for the largest unit of a list. A root as large as that fits too; a larger
// one (a big vocabulary) is sent once a step, through sockets, and would make every slot as large.
void ShardedModel::reserve() {
  const ShardedPolicy& policy = context_.policy;
  struct Need {
    int64_t gather = 0, exchange = 0;
  };
  std::vector<std::pair<Group*, Need>>
      needs;  // in the order of the units, which is that of all ranks
  bool lists = std::any_of(units_.begin(), units_.end(),
                           [](const auto& unit) { return unit->module_list >= 0; });
  for (auto& unit : units_) {
    if (lists && unit->module_list < 0) continue;
    auto at = std::find_if(needs.begin(), needs.end(),
                           [&](const auto& need) { return need.first == &unit->group(); });
    if (at == needs.end()) at = needs.insert(at, {&unit->group(), {}});
    Need& need = at->second;
    need.gather =
        std::max(need.gather,
                 unit->shard_size() * static_cast<int64_t>(c10::elementSize(unit->compute_type())));
    need.exchange =
        std::max(need.exchange, unit->trainable_size() * (unit->group().size() - 1) *
                                    static_cast<int64_t>(c10::elementSize(unit->reduce_type())));
  }
  int64_t ahead =
      policy.explicit_prefetch ? std::max(policy.forward_depth, policy.backward_depth) + 1 : 2;
  for (const auto& [group, need] : needs)
    detail::reserve(*group, need.gather, need.exchange, ahead);
  if (policy.double_buffer) rotate();
}

// Two buffers each for gathers and for reductions, as large as the largest unit needs. A reduction
// packs and receives: two of each.
void ShardedModel::rotate() {
  const ShardedPolicy& policy = context_.policy;
  if (policy.shard->size() == 1) return;
  int64_t gather = 0, reduce = 0;
  for (auto& unit : units_) {
    if (unit->reshards() && !policy.whole_parameters)
      gather = std::max(gather, unit->gathered_bytes());
    reduce = std::max(reduce, unit->trainable_size() * policy.shard->size() *
                                  static_cast<int64_t>(c10::elementSize(unit->reduce_type())));
  }
  auto buffers = [&](int64_t bytes, int count) {
    std::vector<Tensor> out;
    for (int i = 0; bytes > 0 && i < count; ++i) {
      Tensor memory =
          policy.registered ? detail::registered_memory(*policy.shard, bytes) : Tensor();
      if (!memory.defined())
        memory = at::empty({bytes},
                           at::TensorOptions().dtype(at::kByte).device(context_.world->device()));
      out.push_back(memory);
    }
    return out;
  };
  context_.pool->rotate(detail::BufferPool::Use::gather, buffers(gather, 2));
  context_.pool->rotate(detail::BufferPool::Use::reduce, buffers(reduce, 4));
}

void ShardedModel::describe() {
  bool rows = context_.policy.layout == ShardLayout::rows;
  for (auto& unit : units_) {
    const UnitLayout& layout = unit->layout();
    const int64_t me = unit->group().rank();
    for (size_t i = 0; i < unit->parameters().size(); ++i) {
      const Unit::Parameter& p = unit->parameters()[i];
      const size_t dim = layout.cut_dim(i);
      ParallelParameter out;
      out.name = p.name;
      out.global_shape = p.sizes;
      if (unit->replicated())
        out.placement.emplace_back(context_.policy.replicate_axis, "replicate");
      if (unit->group().size() > 1)
        out.placement.emplace_back(unit->axis(),
                                   rows ? "shard(" + std::to_string(dim) + ")" : "flat");
      if (context_.policy.whole_parameters && !p.trainable) {
        out.region = Region::whole(p.sizes);
        out.local = unit->resident(p);
        for (auto& [axis, how] : out.placement) how = "replicate";
        complete(out);
        parameters_.push_back(std::move(out));
        continue;
      }
      out.region = layout.region(i, me);
      const std::vector<int64_t> shape = out.region.stored_shape();
      out.local = unit->shard().narrow(0, layout.at(i, me), out.region.count()).view(shape);
      if (p.trainable)
        out.grad = unit->gradient().narrow(0, layout.at(i, me), out.region.count()).view(shape);
      complete(out);
      parameters_.push_back(std::move(out));
    }
  }
  for (const auto& [name, tensor] : context_.policy.whole) {
    if (tensor.is_meta()) {
      Tensor real = at::zeros(tensor.sizes(), tensor.options().device(context_.world->device()));
      tensor.unsafeGetTensorImpl()->shallow_copy_from(real.getIntrusivePtr());
    }
    ParallelParameter out;
    out.name = name;
    out.local = tensor.detach();
    out.global_shape = tensor.sizes().vec();
    out.region = Region::whole(out.global_shape);
    std::optional<UnitSharding> own =
        is_expert(name) ? std::optional(context_.policy.expert_parallel->sharding()) : std::nullopt;
    if ((own ? own->shard : context_.policy.shard)->size() > 1)
      out.placement.emplace_back(own ? own->axis : context_.policy.shard_axis, "replicate");
    complete(out);
    parameters_.push_back(std::move(out));
  }
}

// What was done to the model before it was sharded.
void ShardedModel::complete(ParallelParameter& parameter) const {
  const ShardedPolicy& policy = context_.policy;
  if (policy.expert_parallel) policy.expert_parallel->describe(parameter);
  if (policy.tensor_parallel && !is_expert(parameter.name))
    policy.tensor_parallel->describe(parameter);
}

bool ShardedModel::is_expert(std::string_view parameter) const {
  return context_.policy.expert_parallel && context_.policy.expert_parallel->holds(parameter);
}

Tensor ShardedModel::join(std::string_view name, const Tensor& local) const {
  const ShardedPolicy& policy = context_.policy;
  if (is_expert(name)) return policy.expert_parallel->whole(name, local);
  return policy.tensor_parallel ? policy.tensor_parallel->whole(name, local) : local;
}

void ShardedModel::attach(Unit& unit) {
  HookHost& host = *HookHost::of(*unit.module);
  host.before_forward.push_back(
      [this, u = &unit](torch::nn::Module&, TensorRefs& inputs) { before_forward(*u, inputs); });
  host.after_forward.push_back(
      [this, u = &unit](torch::nn::Module&, TensorRefs& outputs) { after_forward(*u, outputs); });
}

void ShardedModel::before_forward(Unit& unit, TensorRefs& inputs) {
  unit.done = false;
  unit.wait_for_unshard();
  if (!order_known_) {
    if (!order_.empty() && order_.front() == &unit) {
      order_known_ = true;
    } else if (position_[unit.index] == SIZE_MAX) {
      position_[unit.index] = order_.size();
      order_.push_back(&unit);
    }
  }
  if (!recomputing()) prefetch_forward(unit);
  if (unit.mp().cast_forward_inputs)
    for (Tensor* input : inputs)
      if (input->defined() && at::isFloatingType(input->scalar_type()) &&
          input->scalar_type() != unit.compute_type())
        *input = input->to(unit.compute_type());
  if (context_.world->trace().enabled) forward_began_ = Trace::now();
}

void ShardedModel::after_forward(Unit& unit, TensorRefs& outputs) {
  if (context_.world->trace().enabled && unit.module_list >= 0)
    context_.world->trace().span(Trace::Lane::compute, "forward " + unit.name, forward_began_,
                                 Trace::now());
  // The outermost unit's outputs only: between units a wider output would meet the next module's
  // narrow weights.
  bool casts = unit.module == model_.get() && unit.output_type() != unit.compute_type();
  bool training = c10::GradMode::is_enabled();
  for (Tensor* output : outputs) {
    if (!output->defined() || !at::isFloatingType(output->scalar_type())) continue;
    if (casts && output->scalar_type() != unit.output_type())
      *output = output->to(unit.output_type());
    if (training && output->requires_grad())
      output->register_hook([this, u = &unit](const Tensor&) { before_backward(*u); });
  }
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
  if (context_.world->trace().enabled) unit.backward_began = Trace::now();
  unit.before_backward();
  prefetch_backward(unit);
}

void ShardedModel::prefetch_forward(const Unit& unit) {
  const ShardedPolicy& policy = context_.policy;
  if (!policy.prefetch || whole_) return;
  if (policy.explicit_prefetch) {
    for (int64_t k = 1; k <= policy.forward_depth; ++k) {
      size_t next = unit.index + static_cast<size_t>(k);
      if (unit.module_list < 0 || next >= units_.size() ||
          units_[next]->module_list != unit.module_list)
        break;
      units_[next]->unshard();
    }
    return;
  }
  size_t next = position_[unit.index] + 1;
  if (order_known_ && next < order_.size()) order_[next]->unshard();
}

void ShardedModel::prefetch_backward(const Unit& unit) {
  const ShardedPolicy& policy = context_.policy;
  if (!policy.prefetch || whole_) return;
  if (policy.explicit_prefetch) {
    for (int64_t k = 1; k <= policy.backward_depth; ++k) {
      if (unit.module_list < 0 || unit.index < static_cast<size_t>(k)) break;
      Unit& before = *units_[unit.index - static_cast<size_t>(k)];
      if (before.module_list != unit.module_list) break;
      if (!before.done) before.unshard();
    }
    return;
  }
  // The root's parameters stay until its backward ends, and what ran before the first unit is the
  // root.
  size_t at = position_[unit.index];
  if (unit.module_list < 0 && at == 0) {
    if (order_.size() > 1 && !order_.back()->done) order_.back()->unshard();
  } else if (at > 0 && at != SIZE_MAX && order_[at - 1]->module_list >= 0 &&
             !order_[at - 1]->done) {
    order_[at - 1]->unshard();  // a unit inside another may end after what ran before it
  }
}

void ShardedModel::begin_step() {
  if (in_step_)
    for (auto& unit : units_) unit->abandon();
  in_step_ = true;
  for (auto& unit : units_) unit->begin_step();
}

void ShardedModel::settle() {
  for (auto& unit : units_) unit->settle();
}

void ShardedModel::begin_micro_batch(GradientSync sync) {
  settle();
  context_.synchronise = sync == GradientSync::reduce || context_.policy.reduce_every_micro_batch;
}

void ShardedModel::end_step() {
  settle();
  check_own_gradients();
  for (auto& unit : units_) unit->reduce_late();
  for (auto& unit : units_) unit->end_step();
  if (context_.policy.tensor_parallel)
    context_.policy.tensor_parallel->sum_partial_gradients(parameters_, widest_reduce());
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

// Gathers of whole parameters begin at once, two at a time, in the order in which they will be
// used.
void ShardedModel::after_optimizer_step() {
  for (auto& unit : units_) unit->refresh();
  const ShardedPolicy& policy = context_.policy;
  if (!policy.whole_parameters) return;
  std::vector<Unit*> order = order_;
  if (!order_known_ || order.size() != units_.size()) {
    order.clear();
    for (auto& unit : units_) order.push_back(unit.get());
    std::stable_partition(order.begin(), order.end(), [](const Unit* unit) {
      return unit->module_list < 0;
    });  // the outermost runs first
  }
  for (size_t i = 0; i < order.size(); ++i) {
    if (policy.overlap_gather && policy.shard->size() > 1) {
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
      std::tie(context_.policy.tensor_parallel, context_.policy.expert_parallel);
  std::vector<std::shared_ptr<Group>> groups{context_.policy.shard};
  std::vector<GradientSet> sets;
  if (!tensor_parallel && !expert_parallel) {
    sets.push_back({{}, groups});
    for (const FlatParameterGroup& update : updates_) sets[0].gradients.push_back(update.grads);
    return sets;
  }
  std::vector<ParallelParameter> others;
  GradientSet experts;
  for (const ParallelParameter& p : parameters_) {
    if (!is_expert(p.name))
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
  return sets;
}

double ShardedModel::clip_grad_norm(double max_norm, double scale) {
  const ShardedPolicy& policy = context_.policy;
  if (policy.average == ShardedPolicy::Average::with_clipping)
    scale /= static_cast<double>(context_.averaged());
  double norm = clip_gradients(gradient_sets(), max_norm, scale, context_.world->device());
  if (policy.check_nan && !std::isfinite(norm) && std::isfinite(scale)) {
    detail::Nonfinite mine;
    for (const ParallelParameter& p : parameters_)
      if (mine.parameter.empty()) mine = detail::Nonfinite::in(p.name, p.grad);
    throw_nonfinite(mine, "after the reduction", "check_for_nan_in_grad");
  }
  return norm;
}

void ShardedModel::check_own_gradients() {
  if (!context_.policy.check_own_nan) return;
  throw_nonfinite(std::exchange(context_.own_nonfinite, {}), "before the reduction",
                  "report_nan_in_param_grad");
}

// Collective. All ranks name the same parameter, the first one on the first rank that has one, and
// that rank. Does nothing where no rank has one: a norm can be infinite because the squares of
// finite gradients are.
void ShardedModel::throw_nonfinite(const detail::Nonfinite& mine, const char* when,
                                   const char* option) {
  int64_t index = 0;
  while (index < static_cast<int64_t>(parameters_.size()) &&
         parameters_[static_cast<size_t>(index)].name != mine.parameter)
    ++index;
  // The smallest of a maximum of negatives: the rank, then the parameter, then what is wrong with
  // it.
  auto count = static_cast<int64_t>(parameters_.size());
  int64_t place = (context_.world->rank() * count + index) * 2 + (mine.infinite ? 1 : 0);
  double own = mine.parameter.empty() ? -HUGE_VAL : -static_cast<double>(place);
  Tensor first =
      at::full({1}, own, at::TensorOptions().dtype(at::kDouble).device(context_.world->device()));
  context_.world->everyone()->all_reduce(first, ReduceOp::max, /*control=*/true).wait();
  if (!std::isfinite(first.item<double>())) return;
  place = static_cast<int64_t>(-first.item<double>());
  std::string what = "rank " + std::to_string(place / 2 / count) + ": the gradient of " +
                     parameters_[static_cast<size_t>(place / 2 % count)].name +
                     (place % 2 == 1 ? " is infinite " : " is NaN ") + when;
  throw Error(ErrorCode::nonfinite, what + "; the optimizer has not used it")
      .key(context_.policy.options + "." + option)
      .help(
          "lower optimizer.lr, raise lr_scheduler.lr_warmup_steps, or set optimizer.max_grad_norm "
          "= 1.0")
      .help("to go on regardless, set check_for_nan_in_grad and report_nan_in_param_grad of " +
            context_.policy.options + " and run.stop_on_nonfinite to false");
}

Tensor ShardedModel::full_tensor(std::string_view name) {
  for (auto& unit : units_)
    for (size_t i = 0; i < unit->parameters().size(); ++i)
      if (unit->parameters()[i].name == name) return join(name, unit->full_tensor(i));
  for (const auto& [whole_name, tensor] : context_.policy.whole)
    if (whole_name == name) return join(name, tensor.detach().clone());
  throw Error(ErrorCode::internal, "the model has no parameter " + std::string(name));
}

void ShardedModel::summon_full_parameters(const std::function<void()>& body) {
  context_.lasting = true;
  struct Restore {
    ShardedModel& model;
    ~Restore() {
      model.whole_ = model.context_.lasting = false;
      for (auto& unit : model.units_) unit->reshard();
    }
  } restore{*this};
  for (auto& unit : units_) {
    unit->wait_for_unshard();
    unit->leave_shared_memory();
  }
  whole_ = true;
  body();
}

std::shared_ptr<Group> ShardedModel::data_group() {
  return context_.policy.data ? context_.policy.data : context_.world->everyone();
}

}  // namespace

std::unique_ptr<ParallelModel> shard_model(std::shared_ptr<torch::nn::Module> model,
                                           std::vector<UnitSpec> units, ShardedPolicy policy,
                                           std::shared_ptr<World> world) {
  return std::make_unique<ShardedModel>(std::move(model), std::move(units), std::move(policy),
                                        std::move(world));
}

}  // namespace meshwright
