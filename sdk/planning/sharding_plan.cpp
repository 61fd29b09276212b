// The plan of strategies that shard along rows, and what all plans are begun with.
#include "meshwright/sharding_plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "checkpoint_scope.h"
#include "footprint_parts.h"
#include "meshwright/error.h"
#include "meshwright/unit_rules.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/shared_schemas.h"

namespace meshwright {

int64_t PrefetchPolicy::ahead() const {
  if (!enabled) return 0;
  return chains ? std::max(forward, backward) : 1;
}

std::vector<PlannedUnit> plan_units(const ModelOutline& outline,
                                    std::optional<bool> reshard_after_forward) {
  // Direct items of every list that does not itself lie inside a unit. Lists come in pre-order; a
  // nested list's items become units of their own before the outer list's item takes what is left
  // of it.
  std::vector<PlannedUnit> units;
  std::map<std::string, size_t, std::less<>> unit_of;  // unit name -> index
  auto inside_unit = [&](std::string_view name) {
    for (std::string_view at = module_of(name); !at.empty(); at = module_of(at))
      if (unit_of.contains(at)) return true;
    return false;
  };
  int64_t lists = 0;
  for (const ModuleOutline& list : outline.modules) {
    if (list.kind != ModuleKind::list || inside_unit(list.name) || unit_of.contains(list.name))
      continue;
    std::string prefix = list.name + ".";
    const size_t first = units.size();
    for (const ModuleOutline& item : outline.modules) {
      if (!item.name.starts_with(prefix) ||
          item.name.find('.', prefix.size()) != std::string::npos || item.kind == ModuleKind::list)
        continue;
      unit_of.emplace(item.name, units.size());
      PlannedUnit& unit = units.emplace_back(PlannedUnit{item.name});
      unit.module = item.name;
      unit.module_list = lists;
      unit.reshard_after_forward = reshard_after_forward.value_or(true);
    }
    if (units.size() == first) continue;
    ++lists;
    units.back().last_of_module_list = true;
    units.back().reshard_after_forward = reshard_after_forward.value_or(false);
  }
  PlannedUnit root{"root"};
  root.root = true;
  for (size_t i = 0; i < outline.parameters.size(); ++i) {
    PlannedUnit* owner = &root;
    for (std::string_view at = module_of(outline.parameters[i].name); !at.empty();
         at = module_of(at))
      if (auto it = unit_of.find(at); it != unit_of.end()) {
        owner = &units[it->second];
        break;
      }
    owner->parameters.push_back(i);
  }
  units.push_back(std::move(root));
  return units;
}

namespace {

using namespace footprint;

// Experts, embedding and head as units of their own, taken out of the units of the model.
class ExpertUnits {
 public:
  ExpertUnits(const ShardingRequest& request, const Layout& layout, const ShardingPolicy& policy)
      : request_(request),
        outline_(request.outline),
        moe_(request.config.shared().moe),
        layout_(layout),
        modules_(request.outline),
        reshard_(policy.reshard_after_forward.value_or(true)),
        fp32_head_(!outline_.tied_embeddings && moe_.lm_head_precision == DType::float32),
        head_mp_(policy.precision.mp) {
    head_mp_.output = DType::float32;
  }

  std::vector<PlannedUnit> split(std::vector<PlannedUnit> units) {
    for (PlannedUnit& unit : units) split(unit);
    return std::move(out_);
  }

 private:
  void split(PlannedUnit& unit) {
    const bool root = unit.root;
    const size_t first = out_.size();
    const std::optional<MixedPrecision> own = unit.mp;  // of a rule
    if (root && fp32_head_) unit.mp = head_mp_;         // or the model's output would be narrowed
    std::vector<size_t> rest;
    for (size_t p : unit.parameters) {
      std::string_view module = module_of(outline_.parameters[p].name);
      const bool expert = layout_.shares[p].expert, head = is_head(unit, module);
      if (!expert && !head && !is_embedding(unit, module)) {
        rest.push_back(p);
        continue;
      }
      auto at = std::find_if(out_.begin() + static_cast<std::ptrdiff_t>(first), out_.end(),
                             [&](const PlannedUnit& other) { return other.module == module; });
      if (at == out_.end()) {
        at = out_.insert(at, PlannedUnit{std::string(module)});
        at->module = at->name;
        at->module_list = unit.module_list;
        at->reshard_after_forward = reshard_;
        at->experts = expert;
        at->mp = own;
        if (head && fp32_head_) {
          at->mp = head_mp_;
          at->mp->param = at->mp->reduce = DType::float32;
        }
      }
      at->parameters.push_back(p);
    }
    unit.parameters = std::move(rest);
    // Without an outer root nothing casts the model's output, and what is left of it belongs to the
    // inner model.
    if (root && !moe_.wrap_outer_model) move_into_inner(unit);
    // A module whose parameters are all apart is a unit already.
    if (root || !unit.parameters.empty() || out_.size() == first) out_.push_back(std::move(unit));
  }

  bool is_head(const PlannedUnit& unit, std::string_view module) const {
    return unit.module_list < 0 && !outline_.tied_embeddings && module.ends_with("lm_head");
  }
  bool is_embedding(const PlannedUnit& unit, std::string_view module) const {
    if (unit.module_list >= 0 || outline_.tied_embeddings) return false;
    const ModuleOutline* found = modules_.find(module);
    return found != nullptr && found->kind == ModuleKind::embedding;
  }

  void move_into_inner(PlannedUnit& root) const {
    const std::string& inner = outline_.inner_prefix;
    const bool there = modules_.find(inner) != nullptr;
    for (size_t p : root.parameters)
      if (const std::string& name = outline_.parameters[p].name;
          !there || !name.starts_with(inner + "."))
        throw Error(ErrorCode::conflict, "wrap_outer_model = false, but " + name +
                                             " lies outside of the inner model \"" + inner + "\"")
            .key("distributed.moe.wrap_outer_model")
            .help("set distributed.moe.wrap_outer_model = true");
    if (there) root.module = inner;
  }

  const ShardingRequest& request_;
  const ModelOutline& outline_;
  const MoeOptions& moe_;
  const Layout& layout_;
  ModuleIndex modules_;
  bool reshard_, fp32_head_;
  MixedPrecision head_mp_;
  std::vector<PlannedUnit> out_;
};

// The lists of units that are frozen as a whole beside a trainable rest.
std::set<int64_t> frozen_lists(const ModelOutline& outline, const std::vector<PlannedUnit>& units) {
  std::map<int64_t, bool> frozen;  // by list
  bool any_trainable = false;
  for (const PlannedUnit& unit : units) {
    const bool unit_frozen =
        std::none_of(unit.parameters.begin(), unit.parameters.end(),
                     [&](size_t p) { return outline.parameters[p].trainable; });
    any_trainable = any_trainable || !unit_frozen;
    auto [it, added] = frozen.emplace(unit.module_list, unit_frozen);
    if (!added) it->second = it->second && unit_frozen;
  }
  std::set<int64_t> out;
  for (const auto& [list, whole] : frozen)
    if (list >= 0 && whole && any_trainable) out.insert(list);
  return out;
}

// Which of these lists join the root unit. Towers do, which ranks may run unequally often. Layers
// of language run alike on every rank: where no list trains they stay as they are, or the root
// would be nearly all of the model, whole on every rank all the time.
std::set<int64_t> joining_lists(const std::set<int64_t>& frozen,
                                const std::vector<PlannedUnit>& units) {
  const bool list_trains = std::any_of(units.begin(), units.end(), [&](const PlannedUnit& unit) {
    return unit.module_list >= 0 && !frozen.contains(unit.module_list);
  });
  std::set<int64_t> out;
  for (const PlannedUnit& unit : units)
    if (frozen.contains(unit.module_list) &&
        (list_trains || checkpoint_scope::part_of(unit.name) != "language"))
      out.insert(unit.module_list);
  return out;
}

// Layers that every rank runs alike gain nothing from the root.
void tell_joined_layers(const std::string& key, const std::set<int64_t>& joining,
                        ShardingPlan& plan) {
  std::vector<std::string> names;
  for (const PlannedUnit& unit : plan.units)
    if (joining.contains(unit.module_list) && !unit.experts &&
        checkpoint_scope::part_of(unit.name) == "language")
      names.push_back(unit.name);
  if (names.empty()) return;
  plan.notices.push_back(
      "the frozen units " + names.front() + (names.size() > 1 ? " to " + names.back() : "") +
      " lie in the root unit, which is whole on every rank all through a step; " + key +
      " = \"per_layer\" keeps them in units of their own");
}

// Such lists go where the policy says (semantics 3.6). Under expert parallelism the ranks that
// share the root hold different experts, so it cannot own them: experts stay units of their own,
// cut over the ranks that hold the same.
void place_frozen(const ModelOutline& outline, int64_t ranks, ShardingPlan& plan) {
  using Place = FrozenPolicy::Place;
  const FrozenPolicy& policy = plan.sharding.frozen;
  const std::set<int64_t> frozen = frozen_lists(outline, plan.units);
  const std::string option = plan.sharding.options.of("frozen.place");
  const std::string key = option.empty() ? "the sharding of frozen layers" : option;
  if (frozen.empty() && policy.place != Place::with_root)
    plan.notices.push_back(
        key +
        " has no effect on the model as it is planned: no list of its layers is frozen as a whole");
  if (policy.place == Place::per_layer) {
    std::string names;
    for (const PlannedUnit& unit : plan.units)
      if (frozen.contains(unit.module_list)) names += (names.empty() ? "" : ", ") + unit.name;
    if (names.empty() || ranks == 1) return;
    // Repeated by the error when a collective does not end in time.
    plan.notices.push_back(
        key + " = \"per_layer\": the frozen units " + names +
        " are gathered wherever they run, so every rank must run them equally often; a rank whose "
        "samples leave them out (no image, say) holds up the others. With " +
        key + " = \"root\" every rank gathers them with the root unit");
    return;
  }
  const bool replicates = policy.place == Place::replicated;
  const std::set<int64_t> moving = replicates ? frozen : joining_lists(frozen, plan.units);
  if (!replicates && ranks > 1 && !option.empty()) tell_joined_layers(key, moving, plan);
  for (PlannedUnit& unit : plan.units) {
    if (!moving.contains(unit.module_list) || (unit.experts && !replicates)) continue;
    auto& target = replicates ? plan.whole : plan.units.back().parameters;
    target.insert(target.end(), unit.parameters.begin(), unit.parameters.end());
    unit.parameters.clear();
  }
  std::erase_if(plan.units, [](const PlannedUnit& unit) {
    return unit.module_list >= 0 && unit.parameters.empty();
  });
}

// Units that compute in another dtype than the plan says keep theirs: it is cast when it is
// gathered. What is left of the others is little, and stays from forward to backward.
void keep_frozen_whole(const ModelOutline& outline, ShardingPlan& plan) {
  const DType computes = plan.sharding.precision.mp.param;
  const bool reshards = plan.sharding.reshard_after_forward.value_or(false);
  for (PlannedUnit& unit : plan.units) {
    if (unit.mp && unit.mp->param != computes) continue;
    const size_t before = plan.whole.size();
    unit.once_a_step = unit.module_list >= 0 && trains_beside(outline, unit.parameters);
    footprint::keep_frozen_whole(outline, unit.parameters, plan.whole);
    if (plan.whole.size() > before)
      unit.reshard_after_forward = reshards && !unit.root && !unit.once_a_step;
  }
  std::erase_if(plan.units,
                [](const PlannedUnit& unit) { return !unit.root && unit.parameters.empty(); });
}

void lay_out(const ShardingRequest& request, const Layout& layout, const ShardingPolicy& policy,
             PlannedUnit& unit, std::vector<ParameterPlacement>& placements) {
  const Axis& axis = unit.experts ? layout.ep_shard : layout.shard;
  unit.layout = lay_out_unit(request, layout, policy, unit);
  const UnitLayout* made = unit.layout.get();
  for (size_t i = 0; i < made->parameters().size(); ++i) {
    const size_t p = unit.parameters[made->given(i)];
    if (layout.shares[p].shape.empty()) continue;  // whole
    const Chunk chunk = made->part(i, axis.index);
    placements[p].local_shape = layout.shares[p].shape;
    placements[p].local_shape[made->cut_dim(i)] = chunk.end - chunk.begin;
    placements[p].region = within(layout.shares[p].part, made->region(i, axis.index));
  }
}

// On a pipeline's rank of several stages what lies around the layers is of the first or of the
// last, and done with when that is. A head that shares its weight with the embedding keeps them
// together.
void split_root(const ModelOutline& outline, std::vector<PlannedUnit>& units) {
  std::set<int64_t> mine, roots;  // stages
  for (const ParameterOutline& p : outline.parameters) mine.insert(p.stage);
  for (size_t p : units.back().parameters) roots.insert(outline.parameters[p].stage);
  const int64_t last = outline.stages - 1;
  if (mine.size() < 2 || (roots.size() > 1 && outline.tied_embeddings) ||
      std::any_of(roots.begin(), roots.end(), [&](int64_t s) { return s != 0 && s != last; }))
    return;
  const PlannedUnit whole = units.back();
  for (int64_t stage : roots) {
    if (stage != *roots.begin()) units.push_back(whole);
    PlannedUnit& unit = units.back();
    unit.name = root_of_stage(stage);
    unit.stage = stage;
    unit.last_stage = stage == last;
    std::erase_if(unit.parameters, [&](size_t p) { return outline.parameters[p].stage != stage; });
  }
}

[[noreturn]] void refuse_level(const ShardingPolicy& policy) {
  Error error(ErrorCode::out_of_range,
              "rows are sharded at level 3 alone, and the policy asks for level " +
                  std::to_string(policy.level) + ": only flat buffers have levels 0 to 2");
  if (const std::string key = policy.options.of("level"); !key.empty())
    error.key(key).help("set " + key + " = 3");
  throw error.help("a strategy that offers levels below 3 plans with flat_plan()");
}

}  // namespace

std::string PolicyOptions::of(std::string_view field) const {
  for (const auto& [name, key] : keys_)
    if (name == field) return key;
  return {};
}

ShardingPlan fully_sharded_plan(const ShardingRequest& request, const ShardingPolicy& policy) {
  if (policy.level != 3) refuse_level(policy);
  ShardingPlan plan = begin_plan(request, "shard(0)", policy.options, sharding_fields());
  const Layout& layout = *plan.mesh_layout;
  plan.replicated = false;
  plan.sharding = policy;
  plan.sharding.layout = ShardLayout::rows;
  plan.sharding.precision.mp = precision_of(request);
  const std::optional<bool>& reshard = policy.reshard_after_forward;
  const ModelOutline& outline = request.outline;
  const UnitRule rule = find_unit_rule(outline.architecture);
  plan.units =
      rule ? rule({outline, reshard, plan.sharding.precision.mp}) : plan_units(outline, reshard);
  const MoeOptions& moe = request.config.shared().moe;
  if (policy.independent_replicas && layout.has_experts_mesh)
    throw Error(ErrorCode::size_not_supported,
                "experts are shared out over all replicas, which go their own ways here")
        .key("distributed.ep_size")
        .help("set distributed.ep_size = 1");
  if (layout.has_experts_mesh) {
    if (outline.tied_embeddings && moe.lm_head_precision == DType::float32)
      plan.notices.emplace_back(
          "distributed.moe.lm_head_precision has no effect: the head shares its weight with the "
          "embedding");
    plan.units = ExpertUnits(request, layout, plan.sharding).split(std::move(plan.units));
  }
  if (!reshard && pipeline_size(request) > 1)
    for (PlannedUnit& unit : plan.units) unit.reshard_after_forward = false;
  if (request.config.job().frozen_whole) keep_frozen_whole(outline, plan);
  place_frozen(outline, layout.shard.size, plan);
  split_root(outline, plan.units);
  if (layout.shard.size > 1) part_adapters(outline, plan.units);
  for (PlannedUnit& unit : plan.units)
    lay_out(request, layout, plan.sharding, unit, plan.parameters);
  place_whole(layout, plan);
  return plan;
}

}  // namespace meshwright
