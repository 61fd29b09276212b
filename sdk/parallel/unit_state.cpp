#include "unit_state.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/max.h>

#include <cmath>

#include "meshwright/error.h"
#include "meshwright/parallel/tensor_parallel.h"
#include "sdk/comm/joint_collectives.h"
#include "unit.h"

namespace meshwright::detail {

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
