#include "meshwright/footprint.h"

#include <algorithm>

#include "expert_units.h"
#include "footprint_parts.h"
#include "meshwright/error.h"

namespace meshwright {
namespace {

using namespace footprint;

// A group of parameters gathered and reduced together.
struct UnitGroup {
  std::string name;
  std::vector<size_t> parameters;
  bool experts = false, root = false, last_of_module_list = false;
  MixedPrecision precision;
};

// The units of the model; with an expert mesh, experts leave their layer's unit, and embedding and
// head leave the root's.
std::vector<UnitGroup> make_groups(const FootprintRequest& request, const Layout& layout) {
  std::vector<UnitGroup> groups;
  const ModelOutline& outline = request.outline;
  const MoeOptions& moe = request.config.shared.moe;
  ExpertUnits expert_units(outline);
  for (Unit& unit : plan_units(outline)) {
    bool root = unit.name == "root";
    UnitGroup group{unit.name, {}, false, root, unit.last_of_module_list, precision_of(request)};
    if (!layout.has_experts_mesh) {
      group.parameters = std::move(unit.parameters);
      groups.push_back(std::move(group));
      continue;
    }
    std::vector<std::string_view> names;
    for (size_t p : unit.parameters) names.push_back(outline.parameters[p].name);
    SplitUnit split = expert_units.split(
        names, root, [&](size_t place) { return layout.shares[unit.parameters[place]].expert; });
    for (UnitApart& apart : split.apart) {
      UnitGroup& own = groups.emplace_back(UnitGroup{std::move(apart.module),
                                                     {},
                                                     apart.role == UnitApart::Role::experts,
                                                     false,
                                                     false,
                                                     group.precision});
      if (apart.role == UnitApart::Role::head && moe.lm_head_precision == DType::float32)
        own.precision.param = own.precision.reduce = DType::float32;
      for (size_t place : apart.parameters) own.parameters.push_back(unit.parameters[place]);
    }
    for (size_t place : split.rest) group.parameters.push_back(unit.parameters[place]);
    groups.push_back(std::move(group));
  }
  return groups;
}

// Sums for the peak of gathered parameters and unreduced gradients.
struct Peak {
  int64_t kept = 0, all_gradients = 0, root_gradients = 0;
  std::vector<int64_t> gathered, gradients;  // of units that come and go
};

}  // namespace

Footprint fully_sharded_footprint(const FootprintRequest& request, const ShardingPolicy& policy) {
  Layout layout = make_layout(request);
  const Workload& work = request.workload;
  bool pipelined = pipeline_size(request) > 1;
  int64_t passes = passes_of(request), runs = runs_of(request);
  int64_t reduces = policy.reduce_every_micro_batch ? passes : 1;
  Footprint out;
  Traffic wire;
  Peak peak;
  int64_t local = 0;
  std::vector<int64_t> held(layout.shares.size());  // elements of each parameter on this rank
  for (size_t i = 0; i < layout.shares.size(); ++i)
    out.parameters.push_back(
        placement_of(request.outline.parameters[i], layout.shares[i], layout, "shard(0)"));

  DType widest_reduce = precision_of(request).reduce;
  for (const UnitGroup& group : make_groups(request, layout)) {
    if (dtype_size(group.precision.reduce) > dtype_size(widest_reduce))
      widest_reduce = group.precision.reduce;
    const Axis& axis = group.experts ? layout.ep_shard : layout.shard;
    for (size_t p : group.parameters)
      if (layout.shares[p].shape.empty())
        throw Error(ErrorCode::model_does_not_fit,
                    request.outline.parameters[p].name + " has no dimension to cut")
            .key("distributed.strategy")
            .help("give the parameter the shape [1]");
    UnitLayout unit = UnitLayout::rows(unit_parameters(request, layout, group.parameters),
                                       axis.size, group.experts ? 1 : 0, axis.name);
    for (size_t i = 0; i < unit.parameters().size(); ++i) {
      size_t p = group.parameters[unit.given(i)];
      Chunk chunk = unit.part(i, axis.index);
      out.parameters[p].local_shape = layout.shares[p].shape;
      out.parameters[p].local_shape[unit.cut_dim(i)] = chunk.end - chunk.begin;
      local = plus(local, held[p] = unit.part_elements(i, axis.index));
    }
    int64_t elements = unit.elements(), padded = times(unit.shard_size(), axis.size);
    bool reshards = !group.root &&
                    policy.reshard_after_forward.value_or(!group.last_of_module_list && !pipelined);
    int64_t gathered = times(padded, dtype_size(group.precision.param)),
            reduced = times(padded, dtype_size(group.precision.reduce));
    if (!group.parameters.empty()) {
      wire.add(axis, "all_gather", reshards ? times(2, passes) : runs, gathered);
      wire.add(axis, "reduce_scatter", reduces, reduced);
      if (!group.experts) wire.add(layout.replicate, "all_reduce", reduces, reduced / axis.size);
    }
    // Experts that ep alone cuts are no unit: nothing gathers or reduces them.
    if (!group.experts || axis.size > 1)
      out.units.push_back({group.name, elements, gathered, reshards});

    // Without a second rank the shard itself serves, unless it must be cast.
    if (axis.size > 1 || group.precision.param != work.storage) {
      if (reshards)
        peak.gathered.push_back(gathered);
      else
        peak.kept = plus(peak.kept, gathered);
    }
    if (axis.size > 1 || group.precision.reduce != work.storage ||
        (!group.experts && layout.replicate.size > 1)) {
      peak.all_gradients = plus(peak.all_gradients, reduced);
      if (group.root)
        peak.root_gradients = plus(peak.root_gradients, reduced);
      else
        peak.gradients.push_back(reduced);
    }
  }
  int64_t element = dtype_size(work.storage);
  out.bytes.weights = out.bytes.gradients = times(local, element);
  out.bytes.optimizer = times(local, element, work.optimizer_states);
  bool deferred = !policy.reduce_every_micro_batch && passes > 1;
  out.bytes.transient = plus(
      plus(peak.kept,
           sum_of_largest(peak.gathered, plus(std::max<int64_t>(policy.prefetch_depth, 0), 1))),
      deferred ? peak.all_gradients : plus(peak.root_gradients, sum_of_largest(peak.gradients, 2)));
  out.bytes.activations = activation_bytes(request, /*whole_layers=*/true);
  add_common_rows(request, held, widest_reduce, wire);
  out.wire = wire.rows();
  return out;
}

}  // namespace meshwright
