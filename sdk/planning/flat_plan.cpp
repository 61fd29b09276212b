// Units on flat buffers: which modules form one, how the rest is packed, and what it costs.
#include <algorithm>
#include <map>
#include <set>

#include "footprint_parts.h"
#include "meshwright/error.h"
#include "meshwright/unit_rules.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/base/text.h"

namespace meshwright {
namespace {

using namespace footprint;

[[noreturn]] void refuse_class(std::string message, const ModelOutline& outline,
                               const std::string& key) {
  std::set<std::string> repeated, others;
  for (const ModuleOutline& module : outline.modules)
    if (!module.class_name.empty())
      (module.kind == ModuleKind::layer ? repeated : others).insert(module.class_name);
  Error error(ErrorCode::unit_class_missing, std::move(message));
  if (!key.empty()) error.key(key);
  for (const std::string& name : repeated)
    error.help(key.empty() ? "the model repeats modules of the class " + name
                           : "set " + key + " = [" + text::quote(name) + "]");
  if (!repeated.empty())
    error.help("leave out " + (key.empty() ? std::string("the classes") : key) +
               ": the repeated layers are the units");
  else if (!others.empty())
    error.help("the model has modules of the classes " + text::join(others, ", "));
  const std::string whole = outline.modules.empty() ? "" : outline.modules.front().class_name;
  if (repeated.empty() && !key.empty() && !whole.empty())
    error.help("set " + key + " = [" + text::quote(whole) + "]: all of it is one unit");
  throw error;
}

// What a plan of flat buffers is made of.
struct FlatUnits {
  std::vector<PlannedUnit> units;
  std::vector<size_t> outside;  // parameters outside of them
};

// The repeated layers.
FlatUnits layer_units(const ModelOutline& outline, const std::string& key) {
  FlatUnits out;
  out.units = plan_units(outline);
  out.outside = std::move(out.units.back().parameters);
  out.units.pop_back();
  if (out.units.empty())
    refuse_class("the model " + outline.architecture + " has no repeated layers to make units of",
                 outline, key);
  return out;
}

// Whether the head uses the parameter too.
bool is_tied(const ModelOutline& outline, size_t parameter) {
  if (!outline.tied_embeddings) return false;
  const ModuleOutline* module = outline.find_module(module_of(outline.parameters[parameter].name));
  return module != nullptr && module->kind == ModuleKind::embedding;
}

// Modules of the classes that the policy names.
FlatUnits class_units(const ModelOutline& outline, const std::vector<std::string>& classes,
                      const std::string& key) {
  FlatUnits out;
  std::set<std::string> wanted, found;
  for (const std::string& path : classes) wanted.insert(path.substr(path.rfind('.') + 1));
  std::map<std::string, int64_t, std::less<>> lists;
  for (const ModuleOutline& module : outline.modules) {
    if (!wanted.contains(module.class_name)) continue;
    found.insert(module.class_name);
    // Parents come first, so a module inside a unit belongs to it.
    if (std::any_of(out.units.begin(), out.units.end(), [&](const PlannedUnit& unit) {
          return text::lies_under(module.name, unit.module);
        }))
      continue;
    PlannedUnit& unit = out.units.emplace_back(PlannedUnit{module.name});
    unit.module = module.name;
    if (!module.name.empty())
      unit.module_list =
          lists.emplace(module_of(module.name), static_cast<int64_t>(lists.size())).first->second;
  }
  for (const std::string& name : wanted)
    if (!found.contains(name))
      refuse_class("no module of the model has the class " + name, outline, key);
  for (size_t p = 0; p < outline.parameters.size(); ++p) {
    auto owner = std::find_if(out.units.begin(), out.units.end(), [&](const PlannedUnit& unit) {
      return text::lies_under(outline.parameters[p].name, unit.module);
    });
    // A head outside of the unit would use its weight while it is freed.
    if (owner == out.units.end() || (is_tied(outline, p) && !owner->module.empty()))
      out.outside.push_back(p);
    else
      owner->parameters.push_back(p);
  }
  for (PlannedUnit& unit : out.units) {
    if (unit.parameters.empty() && outline.tied_embeddings)
      refuse_class(
          "the module " + unit.name +
              " has no weights but the embedding, which the head shares, so it cannot be a unit",
          outline, key);
    if (unit.name.empty()) unit.name = outline.architecture;  // the whole model is one unit
  }
  return out;
}

// Buckets of what lies outside units. One never grows past the limit, but one parameter may; a tied
// weight stands alone.
void add_buckets(const ModelOutline& outline, const Layout& layout, int64_t limit,
                 const std::vector<size_t>& outside, std::vector<PlannedUnit>& units) {
  const size_t first = units.size();
  int64_t filled = 0;
  bool closed = true;
  for (size_t p : outside) {
    const int64_t elements = layout.shares[p].elements;
    const bool tied = is_tied(outline, p);
    if (closed || tied || (limit > 0 && plus(filled, elements) > limit)) {
      units.emplace_back().root = true;
      filled = 0;
    }
    units.back().parameters.push_back(p);
    filled = plus(filled, elements);
    closed = tied;
  }
  const size_t buckets = units.size() - first;
  for (size_t b = 0; b < buckets; ++b)
    units[first + b].name = buckets == 1 ? "root" : "root[" + std::to_string(b) + "]";
}

// How often level 3 gathers a unit in the forwards of a step, and in its backwards.
struct Gathers {
  int64_t forward = 0, backward = 0;
};

// The collectives of one unit.
void add_unit(const Axis& axis, int level, const Gathers& gathers, int64_t passes, int64_t gathered,
              int64_t reduced, int64_t elements_bytes, ScheduleBuilder& schedule) {
  switch (level) {
    case 0:
      schedule.add(axis, Phase::reduction, "all_reduce", 1, elements_bytes);
      break;
    case 1:
    case 2:
      schedule.add(axis, Phase::reduction, "reduce_scatter", level == 1 ? 1 : passes, reduced);
      schedule.add(axis, Phase::update, "all_gather", 1, gathered);
      break;
    default:
      schedule.add(axis, Phase::forward, "all_gather", gathers.forward, gathered);
      schedule.add(axis, Phase::backward, "all_gather", gathers.backward, gathered);
      schedule.add(axis, Phase::reduction, "reduce_scatter", passes, reduced);
  }
}

// Elements on this rank.
struct FlatSums {
  int64_t whole = 0, mine = 0;                      // of all parameters, and of their shards
  int64_t whole_trainable = 0, mine_trainable = 0;  // of those that the optimizer updates
  int64_t whole_cast = 0;                           // of those that compute in another dtype
  // Bytes, in place of elements, of those that are stored in another dtype than these.
  int64_t whole_beside = 0, mine_beside = 0;
};

Bytes flat_bytes(const Workload& work, const ShardingPolicy& policy, DType gradient,
                 const FlatSums& sums) {
  const int64_t storage = dtype_size(work.storage);
  const std::optional<DType>& main = policy.precision.main_weights;
  // Main weights beside the model's own; weights that are as wide already serve as both.
  const int64_t beside = main && *main != work.storage ? dtype_size(*main) : 0;
  const int64_t state = main ? dtype_size(*main) : storage;
  const int64_t updated = policy.level >= 1 ? sums.mine_trainable : sums.whole_trainable;
  Bytes out;
  out.weights = policy.level == 3 ? plus(times(sums.mine, storage), sums.mine_beside)
                                  : plus(times(sums.whole, storage), sums.whole_beside);
  out.gradients =
      times(policy.level >= 2 ? sums.mine_trainable : sums.whole_trainable, dtype_size(gradient));
  out.optimizer = times(updated, plus(beside, times(state, work.optimizer_states)));
  return out;
}

}  // namespace

ShardingPlan flat_plan(const ShardingRequest& request, const ShardingPolicy& policy) {
  const int level = policy.level;
  if (level < 0 || level > 3) {
    Error error(ErrorCode::out_of_range,
                "there is no level " + std::to_string(level) + ", the levels are 0 to 3");
    if (const std::string key = policy.options.of("level"); !key.empty())
      error.key(key).help("set " + key + " = 3");
    throw error;
  }
  if (policy.independent_replicas)
    throw Error(ErrorCode::not_in_release,
                "replicas that go their own ways are sharded along rows, not as flat buffers")
        .help("plan with fully_sharded_plan()");
  if (const int64_t pp = request.config.shared().sizes.pp; pp > 1)
    throw Error(ErrorCode::size_not_supported,
                "flat buffers have no pipeline parallelism, but "
                "distributed.pp_size = " +
                    std::to_string(pp))
        .key("distributed.pp_size")
        .help("set distributed.pp_size = 1")
        .help("a strategy of flat buffers refuses it in plan_mesh (refuse_sizes)");
  const ModelOutline& outline = request.outline;
  ShardingPlan plan =
      begin_plan(request, level == 3 ? "flat" : "replicate", policy.options, sharding_fields());
  const Layout& layout = *plan.mesh_layout;
  plan.replicated = false;
  plan.sharding = policy;
  plan.sharding.layout = ShardLayout::flat;
  MixedPrecision& mp = plan.sharding.precision.mp = request.config.shared().mp;
  if (policy.precision.main_gradients) mp.reduce = *policy.precision.main_gradients;
  plan.sharding.reduction.every_micro_batch = level >= 2;
  const std::string key = policy.options.of("flat.unit_classes");
  if (find_unit_rule(outline.architecture))
    plan.notices.push_back("models of class " + outline.architecture +
                           " have a unit rule, which flat buffers do not follow: they follow " +
                           (key.empty() ? "the strategy" : key) +
                           ", and all parameters compute in distributed.mp_policy.param_dtype");
  FlatUnits made = policy.flat.unit_classes.empty()
                       ? layer_units(outline, key)
                       : class_units(outline, policy.flat.unit_classes, key);
  if (request.config.job().frozen_whole && level == 3) {  // below, it is whole all the same
    for (PlannedUnit& unit : made.units) {
      unit.once_a_step = unit.module_list >= 0 && trains_beside(outline, unit.parameters);
      keep_frozen_whole(outline, unit.parameters, plan.whole);
    }
    keep_frozen_whole(outline, made.outside, plan.whole);
    std::erase_if(made.units, [](const PlannedUnit& unit) { return unit.parameters.empty(); });
    place_whole(layout, plan);
  }
  for (PlannedUnit& unit : made.units) unit.reshard_after_forward = level == 3 && !unit.once_a_step;
  if (level == 3 && layout.shard.size > 1) part_adapters(outline, made.units);
  add_buckets(outline, layout, policy.flat.bucket_elements, made.outside, made.units);
  plan.units = std::move(made.units);
  // Casts of inputs and outputs are the outermost unit's.
  if (std::none_of(plan.units.begin(), plan.units.end(),
                   [](const PlannedUnit& unit) { return unit.module.empty(); }))
    plan.units.emplace_back(PlannedUnit{"root"}).root = true;
  for (PlannedUnit& unit : plan.units) {
    unit.layout = lay_out_unit(request, layout, plan.sharding, unit);
    const UnitLayout* flat = unit.layout.get();
    for (size_t i = 0; i < flat->parameters().size(); ++i) {
      ParameterPlacement& placement = plan.parameters[unit.parameters[flat->given(i)]];
      const bool trainable = flat->parameters()[i].trainable;
      if (level == 0 || (level < 3 && !trainable)) continue;
      placement.region = within(layout.shares[unit.parameters[flat->given(i)]].part,
                                flat->region(i, layout.shard.index));
      if (level < 3) continue;
      placement.local_range = flat->part(i, layout.shard.index);
      if (layout.shard.size > 1)
        placement.local_shape = {placement.local_range->end - placement.local_range->begin};
    }
  }
  return plan;
}

Footprint footprint::flat_footprint(const ShardingRequest& request, const ShardingPlan& plan) {
  const std::shared_ptr<const Layout> mesh_layout = layout_of(request, plan);
  const Layout& layout = *mesh_layout;
  const ShardingPolicy& policy = plan.sharding;
  const MixedPrecision& mp = policy.precision.mp;
  const Workload& work = request.workload;
  const Axis& axis = layout.shard;
  const Axis copies = policy.level == 0 ? replicated_axis(request, layout) : axis;
  const DType gradient = policy.precision.main_gradients.value_or(work.storage);
  const int64_t reduce_size = dtype_size(mp.reduce),
                gather_size = dtype_size(policy.level == 3 ? mp.param : work.storage);
  const int64_t passes = passes_of(request);
  const ModuleIndex index(request.outline);
  Footprint out;
  ScheduleBuilder schedule;
  std::vector<int64_t> held(layout.shares.size());  // elements of each gradient once it is reduced
  FlatSums sums;
  int64_t kept = 0, outside_gradients = 0;
  std::vector<int64_t> gathered, gradients;
  for (const PlannedUnit& planned : plan.units) {
    if (planned.parameters.empty() && planned.root) continue;
    const std::shared_ptr<const UnitLayout> unit_layout =
        unit_layout_of(request, layout, plan, planned);
    const UnitLayout& unit = *unit_layout;
    int64_t trainable = 0;
    for (size_t i = 0; i < unit.parameters().size(); ++i) {
      const size_t p = planned.parameters[unit.given(i)];
      const ParameterOutline& parameter = request.outline.parameters[p];
      const int64_t mine = unit.part_elements(i, axis.index), all = layout.shares[p].elements;
      if (stored_as(parameter, work) != mp.param) sums.whole_cast = plus(sums.whole_cast, all);
      if (stored_apart(parameter, work)) {
        const int64_t each = dtype_size(parameter.dtype);
        sums.mine_beside = plus(sums.mine_beside, times(mine, each));
        sums.whole_beside = plus(sums.whole_beside, times(all, each));
        continue;
      }
      sums.mine = plus(sums.mine, mine);
      sums.whole = plus(sums.whole, all);
      if (!unit.parameters()[i].trainable) continue;
      sums.mine_trainable = plus(sums.mine_trainable, mine);
      trainable = plus(trainable, all);
      held[p] = policy.level >= 1 ? mine : all;
    }
    sums.whole_trainable = plus(sums.whole_trainable, trainable);
    const int64_t bytes = times(unit.shard_size(), axis.size, gather_size),
                  reduced = times(unit.trainable_size(), axis.size, reduce_size);
    out.units.push_back({planned.name, unit.elements(), bytes, planned.reshard_after_forward,
                         planned.once_a_step, unit.trainable_size()});
    const bool again = planned.reshard_after_forward && unit_has_backward(request, index, planned);
    schedule.of_unit(planned.name,
                     policy.level < 3 ? policy.overlap_gather : policy.prefetch.ahead() > 0,
                     !policy.keeps_gradients() || policy.reduction.overlap);
    add_unit(copies, policy.level, {planned.once_a_step ? 1 : passes, again ? passes : 0}, passes,
             bytes, reduced, times(trainable, reduce_size), schedule);
    // Alone there are copies, whatever the level.
    if (policy.level > 0 && trainable > 0)
      schedule.add(layout.replicate, Phase::reduction, "all_reduce",
                   axis.size > 1 && policy.level > 1 ? passes : 1,
                   axis.size > 1 ? reduced / axis.size : times(trainable, reduce_size));
    if (planned.reshard_after_forward)
      gathered.push_back(bytes);
    else
      kept = plus(kept, bytes);
    if (planned.root)
      outside_gradients = plus(outside_gradients, reduced);
    else
      gradients.push_back(reduced);
  }

  for (size_t p : plan.whole) {
    const int64_t bytes = times(layout.shares[p].elements,
                                dtype_size(stored_as(request.outline.parameters[p], work)));
    sums.mine_beside = plus(sums.mine_beside, bytes);
    sums.whole_beside = plus(sums.whole_beside, bytes);
  }
  out.bytes = flat_bytes(work, policy, gradient, sums);
  int64_t parameters = 0, unreduced = 0;
  if (policy.level == 3 && (axis.size > 1 || sums.whole_cast > 0))
    parameters = plus(
        kept, sum_of_largest(gathered, plus(std::max<int64_t>(policy.prefetch.ahead(), 0), 1)));
  else if (policy.level < 3)
    parameters = times(sums.whole_cast, dtype_size(mp.param));
  // From level 2 on the whole gradient of a unit exists only until it is reduced; below, only its
  // cast copy does.
  if (axis.size > 1 && policy.level >= 2)
    unreduced = plus(outside_gradients, sum_of_largest(gradients, 2));
  else if (copies.size > 1 && reduce_size != dtype_size(gradient))
    unreduced = sum_of_largest(gradients, 2);
  out.bytes.transient = plus(parameters, unreduced);
  out.bytes.activations = activation_bytes(request, plan.recompute_whole_layers);
  add_common_rows(request, held, mp.reduce, schedule);
  out.schedule = schedule.rows();
  return out;
}

}  // namespace meshwright
