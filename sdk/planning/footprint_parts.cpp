#include "footprint_parts.h"

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "meshwright/error.h"
#include "sdk/base/low_rank.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/base/text.h"
#include "tp_tables.h"

namespace meshwright::footprint {
namespace {

Axis axis_of(const Mesh& mesh, const std::string& name, int64_t rank) {
  return {name, mesh.size(name), mesh.has_axis(name) ? mesh.coordinate(rank, name) : 0};
}

// ep sizes near the wanted one that cut every expert parameter evenly in a stage of `ranks`.
std::vector<int64_t> working_ep_sizes(int64_t ranks, int64_t wanted,
                                      const std::vector<std::vector<int64_t>>& shapes) {
  std::vector<int64_t> out;
  for (int64_t ep = 1; ep <= ranks; ++ep) {
    if (ranks % ep != 0) continue;
    bool fits = std::all_of(shapes.begin(), shapes.end(), [&](const std::vector<int64_t>& shape) {
      return shape[0] % ep == 0 && (ep == 1 || shape.size() < 2 || shape[1] % (ranks / ep) == 0);
    });
    if (fits) out.push_back(ep);
  }
  std::stable_sort(out.begin(), out.end(), [&](int64_t a, int64_t b) {
    return std::abs(a - wanted) < std::abs(b - wanted);
  });
  if (out.size() > 3) out.resize(3);
  return out;
}

[[noreturn]] void refuse_experts(std::string message, const Layout& layout,
                                 const std::vector<std::vector<int64_t>>& shapes) {
  Error error(ErrorCode::model_does_not_fit, std::move(message));
  error.key("distributed.ep_size");
  for (int64_t ep : working_ep_sizes(layout.ep.size * layout.ep_shard.size, layout.ep.size, shapes))
    error.help("set distributed.ep_size = " + std::to_string(ep));
  throw error;
}

void check_experts(const ShardingRequest& request, const Layout& layout) {
  std::vector<std::vector<int64_t>> shapes;
  for (size_t i = 0; i < layout.shares.size(); ++i)
    if (layout.shares[i].expert && !request.outline.parameters[i].shape.empty())
      shapes.push_back(request.outline.parameters[i].shape);
  if (shapes.empty() && !request.outline.moe && request.outline.stages <= 1)
    throw Error(ErrorCode::model_does_not_fit, "ep_size is " + std::to_string(layout.ep.size) +
                                                   ", but the model " +
                                                   request.outline.architecture + " has no experts")
        .key("distributed.ep_size")
        .help("set distributed.ep_size = 1");
  for (size_t i = 0; i < layout.shares.size(); ++i) {
    if (!layout.shares[i].expert) continue;
    const ParameterOutline& parameter = request.outline.parameters[i];
    if (parameter.shape.empty()) continue;
    if (parameter.shape[0] % layout.ep.size != 0)
      refuse_experts("the " + std::to_string(parameter.shape[0]) + " experts of " + parameter.name +
                         " do not divide by ep_size " + std::to_string(layout.ep.size),
                     layout, shapes);
    if (layout.ep_shard.size > 1 && parameter.shape.size() > 1 &&
        parameter.shape[1] % layout.ep_shard.size != 0)
      refuse_experts("dimension 1 of " + parameter.name + " is " +
                         std::to_string(parameter.shape[1]) +
                         " and is cut over ep_shard = dp * cp * tp / ep = " +
                         std::to_string(layout.ep_shard.size) + " ranks, which must divide it",
                     layout, shapes);
  }
}

RankAxes rank_axes(const ShardingRequest& request) {
  RankAxes layout;
  const MeshPlan& plan = request.mesh;
  if (plan.device_mesh) {
    const Mesh& mesh = *plan.device_mesh;
    if (!plan.fsdp_axes.empty()) layout.shard = axis_of(mesh, plan.fsdp_axes.back(), request.rank);
    if (plan.fsdp_axes.size() > 1)
      layout.replicate = axis_of(mesh, plan.fsdp_axes.front(), request.rank);
    layout.tp = axis_of(mesh, "tp", request.rank);
  } else {
    if (request.rank < 0 || request.rank >= plan.dp)
      throw Error(ErrorCode::rank_out_of_range, "there is no rank " + std::to_string(request.rank) +
                                                    " among " + std::to_string(plan.dp))
          .help("choose a rank from 0 to " + std::to_string(plan.dp - 1));
    layout.replicate = {"dp", plan.dp, request.rank};
  }
  if (plan.moe_mesh) {
    layout.has_experts_mesh = true;
    layout.ep = axis_of(*plan.moe_mesh, "ep", request.rank);
    layout.ep_shard = axis_of(*plan.moe_mesh, "ep_shard", request.rank);
  }
  return layout;
}

// A parameter's share of a rank of tp.
void cut_share(const ShardingRequest& request, const ParameterOutline& parameter, const Axis& tp,
               Share& share) {
  const auto dim = static_cast<size_t>(*share.tp_dim);
  if (dim >= share.shape.size())
    throw tp_plan_does_not_fit("the plan (" + request.tp.source + ") cuts dimension " +
                               std::to_string(dim) + " of " + parameter.name + ", which has only " +
                               std::to_string(share.shape.size()))
        .help("give " + std::string(module_of(parameter.name)) + " no style");
  int64_t& rows = share.shape[dim];
  Chunk chunk = ceil_chunk(rows, tp.size, tp.index);
  rows = chunk.end - chunk.begin;
  share.part.offsets[dim] = chunk.begin;
  share.part.sizes[dim] = rows;
}

std::shared_ptr<const Layout> make_layout(const ShardingRequest& request, RankAxes axes) {
  auto made = std::make_shared<Layout>(Layout{std::move(axes), {}, {}});
  Layout& layout = *made;
  for (const TpEntry& entry : request.tp.entries)
    layout.styles.emplace_back(entry.pattern, entry.style);
  const CutDims cuts(request.tp, request.outline);
  std::vector<std::string_view> experts;
  if (layout.has_experts_mesh)
    for (const ModuleOutline& module : request.outline.modules)
      if (module.kind == ModuleKind::experts) experts.push_back(module.name);
  for (const ParameterOutline& parameter : request.outline.parameters) {
    Share share;
    share.shape = parameter.shape;
    share.expert = std::any_of(experts.begin(), experts.end(), [&](std::string_view module) {
      return text::lies_under(parameter.name, module);
    });
    // Expert groups span tp, so experts are cut over ep alone.
    if (!share.expert && layout.tp.size > 1) share.tp_dim = cuts.find(parameter.name);
    share.part = Region::whole(share.shape);
    if (share.tp_dim) cut_share(request, parameter, layout.tp, share);
    layout.shares.push_back(std::move(share));
  }
  if (layout.has_experts_mesh) check_experts(request, layout);
  for (Share& share : layout.shares) {
    if (share.expert && !share.shape.empty()) {
      share.part.sizes[0] = share.shape[0] /= layout.ep.size;
      share.part.offsets[0] = layout.ep.index * share.shape[0];
    }
    share.elements = element_count(share.shape);
  }
  return made;
}

// Whether a plan's layout was made from what the request asks about.
bool belongs_to(const ShardingPlan& plan, const ShardingRequest& request, const RankAxes& axes) {
  const Layout& layout = *plan.mesh_layout;
  const std::vector<ParameterOutline>& parameters = request.outline.parameters;
  if (static_cast<const RankAxes&>(layout) != axes || layout.shares.size() != parameters.size() ||
      plan.parameters.size() != parameters.size() ||
      layout.styles.size() != request.tp.entries.size())
    return false;
  for (size_t i = 0; i < layout.styles.size(); ++i)
    if (layout.styles[i].first != request.tp.entries[i].pattern ||
        layout.styles[i].second != request.tp.entries[i].style)
      return false;
  for (size_t i = 0; i < parameters.size(); ++i)
    if (plan.parameters[i].name != parameters[i].name ||
        plan.parameters[i].global_shape != parameters[i].shape)
      return false;
  return true;
}

// What a unit of these parameters is laid out from.
std::vector<UnitParameter> unit_parameters(const ShardingRequest& request, const Layout& layout,
                                           const std::vector<size_t>& parameters) {
  std::vector<UnitParameter> out;
  out.reserve(parameters.size());
  for (size_t p : parameters) {
    const Share& share = layout.shares[p];
    const ParameterOutline& outline = request.outline.parameters[p];
    // What has no dimension is one element, and never cut.
    std::vector<int64_t> sizes = share.shape.empty() ? std::vector<int64_t>{1} : share.shape;
    UnitParameter& parameter =
        out.emplace_back(UnitParameter{outline.name, std::move(sizes), outline.trainable});
    if (share.tp_dim)
      mark_cut(parameter, outline.shape, static_cast<size_t>(*share.tp_dim), layout.tp.size);
  }
  return out;
}

// The placement on all axes, with `data_text` on the data-parallel sharding axis; local_shape
// without that axis.
ParameterPlacement placement_of(const ParameterOutline& parameter, const Share& share,
                                const Layout& layout, std::string_view data_text) {
  ParameterPlacement out;
  out.name = parameter.name;
  out.global_shape = parameter.shape;
  out.local_shape = share.shape;
  out.region = share.part;
  auto add = [&](const Axis& axis, std::string text) {
    if (axis.size > 1) out.placement.emplace_back(axis.name, std::move(text));
  };
  if (share.expert) {
    add(layout.ep_shard, parameter.shape.size() > 1 ? "shard(1)" : "shard(0)");
    add(layout.ep, "shard(0)");
    return out;
  }
  add(layout.replicate, "replicate");
  add(layout.shard, std::string(data_text));
  add(layout.tp, share.tp_dim ? "shard(" + std::to_string(*share.tp_dim) + ")" : "replicate");
  return out;
}

}  // namespace

std::shared_ptr<const Layout> layout_of(const ShardingRequest& request, const ShardingPlan& plan) {
  RankAxes axes = rank_axes(request);
  if (plan.mesh_layout && belongs_to(plan, request, axes)) return plan.mesh_layout;
  return make_layout(request, std::move(axes));
}

std::shared_ptr<const UnitLayout> lay_out_unit(const ShardingRequest& request, const Layout& layout,
                                               const ShardingPolicy& policy,
                                               const PlannedUnit& unit) {
  const bool flat = policy.layout == ShardLayout::flat;
  const Axis& axis = unit.experts ? layout.ep_shard : layout.shard;
  for (size_t p : unit.parameters)
    if (layout.shares[p].shape.empty() && (flat || axis.size > 1))
      throw Error(ErrorCode::model_does_not_fit,
                  request.outline.parameters[p].name +
                      (flat ? " has no dimension, which a part of a flat buffer needs"
                            : " has no dimension to cut over the " + std::to_string(axis.size) +
                                  " ranks of " + axis.name))
          .key("distributed.strategy")
          .help("give the parameter the shape [1]");
  std::vector<UnitParameter> parameters = unit_parameters(request, layout, unit.parameters);
  return std::make_shared<const UnitLayout>(
      flat ? UnitLayout::flat(std::move(parameters), axis.size, policy.keeps_parameters())
           : UnitLayout::rows(std::move(parameters), axis.size, unit.experts ? 1 : 0, axis.name));
}

std::shared_ptr<const UnitLayout> unit_layout_of(const ShardingRequest& request,
                                                 const Layout& layout, const ShardingPlan& plan,
                                                 const PlannedUnit& unit) {
  if (!unit.layout) return lay_out_unit(request, layout, plan.sharding, unit);
  std::vector<UnitMember> members;
  members.reserve(unit.parameters.size());
  for (size_t p : unit.parameters)
    members.push_back(
        {request.outline.parameters[p].name, request.outline.parameters[p].trainable});
  check_unit_layout(unit.name, *unit.layout, members,
                    (unit.experts ? layout.ep_shard : layout.shard).size);
  return unit.layout;
}

std::span<const std::string> sharding_fields() {
  static const std::vector<std::string> fields = {"layout",
                                                  "reshard_after_forward",
                                                  "level",
                                                  "overlap_gather",
                                                  "prefetch.enabled",
                                                  "prefetch.chains",
                                                  "prefetch.forward",
                                                  "prefetch.backward",
                                                  "offload.cpu",
                                                  "offload.pin_memory",
                                                  "precision.mp",
                                                  "precision.main_weights",
                                                  "precision.main_gradients",
                                                  "reduction.average",
                                                  "reduction.every_micro_batch",
                                                  "reduction.overlap",
                                                  "buffers.rotating",
                                                  "buffers.registered",
                                                  "checks.reduced",
                                                  "checks.own",
                                                  "frozen.place",
                                                  "flat.unit_classes",
                                                  "flat.bucket_elements",
                                                  "independent_replicas"};
  return fields;
}

namespace {

// A message looks its field up: under a wrong name the option would never be told of.
void check_fields(const ShardingRequest& request, const PolicyOptions& options,
                  std::span<const std::string> fields) {
  for (const auto& [field, key] : options.keys()) {
    if (std::find(fields.begin(), fields.end(), field) != fields.end()) continue;
    Error error(ErrorCode::unknown_key,
                "the policy of the strategy " + request.config.own().schema().owner +
                    " has no field \"" + field + "\", which PolicyOptions name for " + key);
    error.key(key);
    if (const std::string near = nearest_name(field, fields); !near.empty())
      error.help("did you mean \"" + near + "\"?");
    throw error.help("a field in a struct of the policy is named with it: \"flat.unit_classes\"");
  }
}

}  // namespace

ShardingPlan begin_plan(const ShardingRequest& request, std::string_view data_text,
                        const PolicyOptions& options, std::span<const std::string> fields) {
  check_fields(request, options, fields);
  ShardingPlan plan;
  plan.mesh_layout = make_layout(request, rank_axes(request));
  const Layout& layout = *plan.mesh_layout;
  plan.parameters.reserve(layout.shares.size());
  for (size_t i = 0; i < layout.shares.size(); ++i)
    plan.parameters.push_back(
        placement_of(request.outline.parameters[i], layout.shares[i], layout, data_text));
  return plan;
}

ModuleIndex::ModuleIndex(const ModelOutline& outline) {
  modules_.reserve(outline.modules.size());
  for (const ModuleOutline& module : outline.modules) modules_[module.name] = &module;
  for (const ParameterOutline& parameter : outline.parameters) {
    const std::string_view module = module_of(parameter.name), layer = layer_of(module);
    const std::string_view part = layer.empty() ? module : layer;
    if (parameter.trainable || parameter.stage > 0) {
      forward_only_.erase(part);
      break;
    }
    forward_only_.insert(part);
  }
}

bool ModuleIndex::has_backward(std::string_view module) const {
  const std::string_view layer = layer_of(module);
  return !forward_only_.contains(layer.empty() ? module : layer);
}

const ModuleOutline* ModuleIndex::find(std::string_view name) const {
  auto at = modules_.find(name);
  return at == modules_.end() ? nullptr : at->second;
}

std::string_view ModuleIndex::layer_of(std::string_view name) const {
  for (; !name.empty(); name = module_of(name))
    if (const ModuleOutline* module = find(name);
        module != nullptr && module->kind == ModuleKind::layer)
      return name;
  return {};
}

void keep_frozen_whole(const ModelOutline& outline, std::vector<size_t>& parameters,
                       std::vector<size_t>& whole) {
  const auto frozen = std::stable_partition(parameters.begin(), parameters.end(), [&](size_t p) {
    return outline.parameters[p].trainable;
  });
  whole.insert(whole.end(), frozen, parameters.end());
  parameters.erase(frozen, parameters.end());
}

void place_whole(const Layout& layout, ShardingPlan& plan) {
  for (size_t p : plan.whole)
    for (auto& [axis, how] : plan.parameters[p].placement)
      if (axis == layout.shard.name || axis == layout.ep_shard.name) how = "replicate";
}

bool unit_has_backward(const ShardingRequest& request, const ModuleIndex& index,
                       const PlannedUnit& unit) {
  return std::any_of(unit.parameters.begin(), unit.parameters.end(), [&](size_t p) {
    return index.has_backward(module_of(request.outline.parameters[p].name));
  });
}

std::optional<int64_t> cut_dim(bool column, bool embedding, std::string_view parameter) {
  if (parameter.ends_with(".bias")) return column ? std::optional<int64_t>(0) : std::nullopt;
  // Linear [out, in]: column cuts out, row cuts in. Embedding [rows, dim]: row cuts the vocabulary,
  // column the dimension.
  return column != embedding ? 0 : 1;
}

CutDims::CutDims(const TpPlan& plan, const ModelOutline& outline) {
  for (const TpEntry& entry : plan.entries)
    if (entry.style.kind == TpStyleKind::column || entry.style.kind == TpStyleKind::row)
      for (const std::string& module : entry.modules)
        modules_.try_emplace(module, Module{.column = entry.style.kind == TpStyleKind::column});
  if (modules_.empty()) return;
  for (const ModuleOutline& module : outline.modules)
    if (module.kind == ModuleKind::embedding || module.kind == ModuleKind::other)
      if (auto found = modules_.find(module.name); found != modules_.end())
        (module.kind == ModuleKind::other ? found->second.own : found->second.embedding) = true;
}

std::optional<int64_t> CutDims::find(std::string_view parameter) const {
  if (auto found = modules_.find(module_of(parameter)); found != modules_.end())
    return found->second.own ? 0
                             : cut_dim(found->second.column, found->second.embedding, parameter);
  const std::optional<LowRankFactor> factor = low_rank_factor(parameter);
  if (!factor) return std::nullopt;
  auto linear = modules_.find(factor->linear);
  if (linear == modules_.end() || linear->second.embedding) return std::nullopt;
  return factor_cut_dim(linear->second.column, factor->out);
}

int64_t sum_of_largest(std::vector<int64_t> values, int64_t count) {
  std::sort(values.begin(), values.end(), std::greater<>());
  int64_t sum = 0;
  for (size_t i = 0; i < values.size() && static_cast<int64_t>(i) < count; ++i)
    sum = plus(sum, values[i]);
  return sum;
}

MixedPrecision precision_of(const ShardingRequest& request) {
  const SharedOptions& shared = request.config.shared();
  return request.mesh.moe_mesh && shared.moe.mp_policy ? *shared.moe.mp_policy : shared.mp;
}

int64_t pipeline_size(const ShardingRequest& request) {
  return request.mesh.device_mesh ? request.mesh.device_mesh->size("pp") : 1;
}

int64_t runs_of(const ShardingRequest& request) {
  if (pipeline_size(request) == 1) return std::max<int64_t>(request.workload.accumulation, 1);
  return pipeline_runs(request.config.shared().pipeline, request.workload);
}

int64_t micro_batches_of(const ShardingRequest& request) {
  if (pipeline_size(request) == 1) return 1;
  const PipelineOptions& pipeline = request.config.shared().pipeline;
  const int64_t batch = pipeline.batch_size.value_or(step_samples(request.workload));
  return std::max<int64_t>(batch / std::max<int64_t>(pipeline.microbatch_size, 1), 1);
}

int64_t passes_of(const ShardingRequest& request) {
  return times(runs_of(request), micro_batches_of(request));
}

int64_t scaled(int64_t a, int64_t b, int64_t c) {
  return plus(times(a / c, b), times(a % c, b) / c);
}

void ScheduleBuilder::of_unit(std::string name, bool gathers_overlap, bool reductions_overlap) {
  unit_ = std::move(name);
  gathers_overlap_ = gathers_overlap;
  reductions_overlap_ = reductions_overlap;
  begin_ = rows_.size();
}

void ScheduleBuilder::add(const Axis& axis, Phase phase, std::string_view op, int64_t count,
                          int64_t payload) {
  if (axis.size <= 1 || count == 0 || payload == 0) return;
  const auto begin = rows_.begin() + static_cast<ptrdiff_t>(begin_);
  const auto at = std::find_if(begin, rows_.end(), [&](const Communication& row) {
    return row.payload == payload && row.phase == phase && row.axis == axis.name &&
           row.ranks == axis.size && row.op == op;
  });
  if (at != rows_.end()) {
    at->count = plus(at->count, count);
    return;
  }
  Communication& row = rows_.emplace_back();
  row.unit = unit_;
  row.phase = phase;
  row.axis = axis.name;
  row.op = op;
  row.ranks = axis.size;
  row.count = count;
  row.payload = payload;
  row.overlaps = phase == Phase::reduction ? reductions_overlap_ : gathers_overlap_;
}

}  // namespace meshwright::footprint
