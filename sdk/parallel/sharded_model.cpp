// How a model is taken over by its units, and what is read of it.
#include "sharded_model.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "gradients.h"
#include "meshwright/error.h"
#include "meshwright/parallel/expert_parallel.h"
#include "meshwright/parallel/tensor_parallel.h"
#include "sdk/comm/shared_memory.h"
#include "unit.h"

namespace meshwright {

namespace detail {

using at::Tensor;

ShardedModel::ShardedModel(std::shared_ptr<torch::nn::Module> model,
                           const std::vector<UnitSpec>& specs, const ShardingPolicy& policy,
                           ShardGroups groups, std::shared_ptr<World> world)
    : model_(std::move(model)) {
  context_.policy = policy;
  context_.groups = std::move(groups);
  context_.world = std::move(world);
  context_.pool = std::make_shared<BufferPool>(context_.world->device());
  std::set<c10::TensorImpl*> owned;
  for (const UnitSpec& spec : specs) {
    std::optional<at::ScalarType> trained, frozen;
    for (const auto& [name, tensor] : spec.parameters) {
      std::optional<at::ScalarType>& storage = tensor.requires_grad() ? trained : frozen;
      if (!owned.insert(tensor.unsafeGetTensorImpl()).second)
        throw Error(ErrorCode::bad_module, "parameter " + name + " is shared between two units")
            .help("put both uses into one unit");
      if (!trains(tensor.scalar_type()))
        throw Error(ErrorCode::bad_module, "parameter " + name + " is " +
                                               c10::toString(tensor.scalar_type()) +
                                               ", which is no floating type that can be trained")
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
  find_frozen_apart(specs);
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
  pair_units();
  position_.assign(units_.size(), SIZE_MAX);
  passes_.assign(units_.size(), -1);
  place_buffers(*model_, context_.world->device());
  allocate();
  describe();
  reserve();
  order_reductions();
  std::set<const torch::nn::Module*> at_units;
  for (const auto& unit : units_) at_units.insert(unit->module);
  for (auto& unit : units_) {
    for (const auto& module : unit->module->modules(/*include_self=*/false))
      unit->encloses = unit->encloses || at_units.contains(module.get());
    attach(*unit);
  }
}

// By module, since two units may share one.
void ShardedModel::find_frozen_apart(const std::vector<UnitSpec>& specs) {
  struct Stored {
    std::optional<at::ScalarType> trained, frozen;
  };
  std::map<const torch::nn::Module*, Stored> modules;
  for (const UnitSpec& spec : specs) {
    Stored& stored = modules[spec.module];
    for (const auto& [name, tensor] : spec.parameters)
      (tensor.requires_grad() ? stored.trained : stored.frozen) = tensor.scalar_type();
  }
  for (const auto& [module, stored] : modules)
    if (stored.trained && stored.frozen && *stored.trained != *stored.frozen)
      context_.frozen_apart = true;
}

// What is gathered once a step, to what is frozen in the same module.
void ShardedModel::pair_units() {
  std::map<const torch::nn::Module*, Unit*> others;
  for (auto& unit : units_)
    if (!unit->once_a_step) others.emplace(unit->module, unit.get());
  for (auto& unit : units_) {
    auto found = unit->once_a_step ? others.find(unit->module) : others.end();
    if (found == others.end() || found->second->beside != nullptr) continue;
    unit->around = found->second;
    unit->around->beside = unit.get();
  }
}

// The last unit first, by the first parameter of each: a unit is done when the gradients of what it
// runs first have come.
void ShardedModel::order_reductions() {
  std::map<c10::TensorImpl*, size_t> places;
  for (const Tensor& p : model_->parameters())
    places.emplace(p.unsafeGetTensorImpl(), places.size());
  std::vector<std::pair<size_t, Unit*>> order;
  for (auto& unit : units_) {
    size_t first = places.size();
    for (const Unit::Parameter& p : unit->parameters())
      if (auto found = places.find(p.variable.unsafeGetTensorImpl()); found != places.end())
        first = std::min(first, found->second);
    order.emplace_back(first, unit.get());
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (const auto& [place, unit] : order) context_.turns.push_back(&unit->reducer());
}

// One tensor of values and one of gradients a storage dtype; units lie one after the other, frozen
// parameters of another dtype apart from them. On a
// device each unit's gradient has memory of its own, so that it is there only while it has values:
// not while all activations are.
void ShardedModel::allocate() {
  at::TensorOptions options = at::TensorOptions().device(
      context_.policy.offload.cpu ? at::Device(at::kCPU) : context_.world->device());
  if (context_.policy.offload.cpu && context_.policy.offload.pin_memory &&
      !context_.world->device().is_cpu())
    options = options.pinned_memory(true);
  if (context_.policy.keeps_parameters()) {
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
    int64_t size = 0, all = 0, trainable = 0;
    for (Unit* unit : units) {
      size += unit->shard_elements();
      all += unit->shard_size();
      trainable += unit->trainable_size();
    }
    const bool lends = !options.device().is_cpu();
    Tensor values = at::empty({size}, options.dtype(dtypes.first)),
           grads = at::zeros({lends ? 0 : trainable}, options.dtype(dtypes.second));
    // A unit's frozen part follows its own trainable one, so with frozen parameters every unit is a
    // group of its own; also where these lie in another unit, whose dtype shall change no sum.
    bool together = all == trainable && !lends &&
                    std::none_of(units.begin(), units.end(),
                                 [](const Unit* unit) { return unit->around != nullptr; });
    int64_t v = 0, g = 0;
    for (Unit* unit : units) {
      Tensor shard = values.narrow(0, v, unit->shard_elements()),
             gradient = lends ? at::zeros({unit->trainable_size()}, grads.options())
                              : grads.narrow(0, g, unit->trainable_size()),
             frozen = at::empty({unit->frozen_elements()}, options.dtype(unit->frozen_type()));
      unit->adopt(shard, gradient, frozen);
      if (lends) unit->lend_gradient_memory();
      if (!together && unit->trainable_size() > 0)
        updates_.push_back({shard.narrow(0, 0, unit->trainable_size()), gradient});
      v += unit->shard_elements();
      g += unit->trainable_size();
    }
    if (together) updates_.push_back({values, grads});
  }
}

// Room in shared memory for the largest unit of a list. A root as large as that fits too; a larger
// one (a big vocabulary) is sent once a step, through sockets, and would make every slot as large.
void ShardedModel::reserve() {
  const ShardingPolicy& policy = context_.policy;
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
  if (policy.prefetch.chains)
    context_.ahead = std::max(policy.prefetch.forward, policy.prefetch.backward) + 1;
  for (const auto& [group, need] : needs)
    detail::reserve(*group, need.gather, need.exchange, context_.ahead);
  std::set<Group*> replicas;
  for (auto& unit : units_)
    if (Group* group = unit->replicas(); group != nullptr && replicas.insert(group).second)
      detail::expect_large_sums(*group);
  if (policy.buffers.rotating) rotate();
}

// Two buffers each for gathers and for reductions, as large as the largest unit needs. A reduction
// packs and receives: two of each.
void ShardedModel::rotate() {
  const ShardingPolicy& policy = context_.policy;
  if (context_.groups.shard->size() == 1) return;
  int64_t gather = 0, reduce = 0;
  for (auto& unit : units_) {
    if (unit->reshards() && !policy.keeps_parameters())
      gather = std::max(gather, unit->gathered_bytes());
    reduce = std::max(reduce, unit->trainable_size() * context_.groups.shard->size() *
                                  static_cast<int64_t>(c10::elementSize(unit->reduce_type())));
  }
  auto buffers = [&](int64_t bytes, int count) {
    std::vector<Tensor> out;
    for (int i = 0; bytes > 0 && i < count; ++i) {
      Tensor memory =
          policy.buffers.registered ? registered_memory(*context_.groups.shard, bytes) : Tensor();
      if (!memory.defined())
        memory = at::empty({bytes},
                           at::TensorOptions().dtype(at::kByte).device(context_.world->device()));
      out.push_back(memory);
    }
    return out;
  };
  context_.pool->rotate(BufferPool::Use::gather, buffers(gather, 2));
  context_.pool->rotate(BufferPool::Use::reduce, buffers(reduce, 4));
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
      if (unit->replicated() || !context_.groups.independent_axis.empty())
        out.placement.emplace_back(context_.groups.replicate_axis, "replicate");
      if (unit->group().size() > 1)
        out.placement.emplace_back(unit->axis(),
                                   rows ? "shard(" + std::to_string(dim) + ")" : "flat");
      if (context_.policy.keeps_parameters() && !p.trainable) {
        out.region = Region::whole(p.sizes);
        out.local = unit->resident(p);
        for (auto& [axis, how] : out.placement) how = "replicate";
        complete(out);
        parameters_.push_back(std::move(out));
        continue;
      }
      out.region = layout.region(i, me);
      const std::vector<int64_t> shape = out.region.stored_shape();
      out.local = unit->local(i).view(shape);
      if (p.trainable)
        out.grad = unit->gradient().narrow(0, layout.at(i, me), out.region.count()).view(shape);
      complete(out);
      parameters_.push_back(std::move(out));
    }
  }
  for (const auto& [name, tensor] : context_.groups.whole) {
    if (tensor.is_meta()) {
      Tensor real = at::zeros(tensor.sizes(), tensor.options().device(context_.world->device()));
      tensor.unsafeGetTensorImpl()->shallow_copy_from(real.getIntrusivePtr());
    } else if (tensor.device() != context_.world->device()) {
      tensor.set_data(tensor.detach().to(context_.world->device()));
    }
    ParallelParameter out;
    out.name = name;
    out.local = tensor.detach();
    out.global_shape = tensor.sizes().vec();
    out.region = Region::whole(out.global_shape);
    std::optional<UnitSharding> own =
        is_expert(name) ? std::optional(context_.groups.expert_parallel->sharding()) : std::nullopt;
    if ((own ? own->shard : context_.groups.shard)->size() > 1)
      out.placement.emplace_back(own ? own->axis : context_.groups.shard_axis, "replicate");
    complete(out);
    parameters_.push_back(std::move(out));
  }
}

// What was done to the model before it was sharded.
void ShardedModel::complete(ParallelParameter& parameter) const {
  if (context_.groups.expert_parallel) context_.groups.expert_parallel->describe(parameter);
  if (context_.groups.tensor_parallel && !is_expert(parameter.name))
    context_.groups.tensor_parallel->describe(parameter);
}

bool ShardedModel::is_expert(std::string_view parameter) const {
  return context_.groups.expert_parallel && context_.groups.expert_parallel->holds(parameter);
}

Tensor ShardedModel::join(std::string_view name, const Tensor& local) const {
  if (is_expert(name)) return context_.groups.expert_parallel->whole(name, local);
  return context_.groups.tensor_parallel ? context_.groups.tensor_parallel->whole(name, local)
                                         : local;
}

Tensor ShardedModel::full_tensor(std::string_view name) {
  for (auto& unit : units_)
    for (size_t i = 0; i < unit->parameters().size(); ++i)
      if (unit->parameters()[i].name == name) return join(name, unit->full_tensor(i));
  for (const auto& [whole_name, tensor] : context_.groups.whole)
    if (whole_name == name) return join(name, tensor.detach().clone());
  throw Error(ErrorCode::internal, "the model has no parameter " + std::string(name));
}

void ShardedModel::summon_full_parameters(const std::function<void()>& body) {
  context_.lasting = true;
  struct Restore {
    ShardedModel& model;
    ~Restore() {
      model.whole_ = model.context_.lasting = false;
      for (auto& unit : model.units_) unit->free();
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
  return context_.groups.data ? context_.groups.data : context_.world->everyone();
}

}  // namespace detail

std::unique_ptr<ParallelModel> shard_model(std::shared_ptr<torch::nn::Module> model,
                                           std::vector<UnitSpec> units,  // NOLINT(performance-*)
                                           const ShardingPolicy& policy, ShardGroups groups,
                                           std::shared_ptr<World> world) {
  return std::make_unique<detail::ShardedModel>(std::move(model), units, policy, std::move(groups),
                                                std::move(world));
}

}  // namespace meshwright
