#include <boost/json/array.hpp>
#include <boost/json/value.hpp>

#include <algorithm>

#include "engine/job/plan.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/shared_schemas.h"

namespace meshwright::plan {
namespace {

namespace json = boost::json;

// Of numbers, or of texts.
template <class Value>
json::array list_of(const std::vector<Value>& values) {
  return json::array(values.begin(), values.end());
}

json::value mesh_json(const std::optional<Mesh>& mesh) {
  if (!mesh) return nullptr;
  json::array axes, shape;
  for (const MeshAxis& axis : mesh->axes()) {
    axes.emplace_back(axis.name);
    shape.emplace_back(axis.size);
  }
  return json::object{{"axes", axes}, {"shape", shape}};
}

json::object rank_json(const JobPlan& plan) {
  json::object coordinates, groups;
  for (const AxisView& axis : axes_of(plan)) {
    if (!axis.flattened) coordinates[axis.name] = axis.coordinate;
    groups[axis.name] = list_of(axis.group);
  }
  return {{"rank", plan.rank}, {"coordinates", coordinates}, {"groups", groups}};
}

json::array tp_json(const TpPlan& tp) {
  json::array out;
  for (const TpEntry& entry : tp.entries)
    out.push_back(
        json::object{{"pattern", entry.pattern},
                     {"style", std::string(style_name(entry.style.kind))},
                     {"input", std::string(layout_name(entry.style.input))},
                     {"output", std::string(layout_name(entry.style.output))},
                     {"kind", entry.style.output_kind == TpOutputKind::plain ? "plain" : "sharded"},
                     {"modules", entry.modules.size()}});
  return out;
}

json::value pipeline_json(const JobPlan& plan) {
  const std::optional<PipelinePlan>& pipeline = plan.pipeline;
  if (!pipeline) return nullptr;
  json::array stages;
  for (const PipelineStage& stage : pipeline->stages)
    stages.push_back(json::object{{"index", stage.index},
                                  {"rank", stage.rank},
                                  {"first_layer", stage.first_layer},
                                  {"layers", stage.layer_count},
                                  {"modules", list_of(stage.modules)}});
  json::array ranks;
  for (const std::vector<int64_t>& of_rank : pipeline->stages_of_rank)
    ranks.push_back(list_of(of_rank));
  const PipelineOptions& options = plan.shared.pipeline;
  const int64_t micro_batches = pipeline_micro_batches(options),
                runs = pipeline_runs(options, plan.workload);
  const PipelineLists lists = plan_actions(*pipeline, options, micro_batches);
  const PipelineRun run = simulate_pipeline(lists);
  json::array in_flight, actions;
  for (const PipelinePeak& peak : run.peaks) in_flight.emplace_back(peak.passes);
  for (const PipelineList& list : lists) actions.emplace_back(actions_row(list));
  return json::object{{"schedule", schedule_text(*pipeline)},
                      {"stages", stages},
                      {"stages_of_rank", ranks},
                      {"micro_batches", micro_batches},
                      {"runs", runs},
                      {"bubble", run.bubble},
                      {"in_flight", in_flight},
                      {"actions", actions}};
}

json::value context_json(const JobPlan& plan) {
  if (!plan.context) return nullptr;
  const ContextSplit split(std::max<int64_t>(plan.workload.seq_len, 1),
                           plan.mesh.device_mesh->size("cp"), plan.context->balance);
  json::array positions, methods;
  for (const PositionRun& run : split.runs_of(plan.mesh.device_mesh->coordinate(plan.rank, "cp")))
    positions.push_back(json::array{run.position, run.position + run.count});
  for (const ContextCost& cost : plan.context_costs)
    methods.push_back(json::object{{"method", cost.method},
                                   {"bytes", cost.bytes},
                                   {"transient", cost.transient},
                                   {"chosen", cost.chosen}});
  return json::object{{"method", context_method_name(*plan.context)},
                      {"ring_size", plan.context->ring},
                      {"ulysses_size", plan.context->ulysses},
                      {"padded_seq_len", split.padded()},
                      {"positions", positions},
                      {"methods", methods}};
}

json::array parameters_json(const JobPlan& plan) {
  const Footprint& footprint = *plan.footprint;
  const ModelOutline outline = outline_of_rank(plan);
  const ParametersByName outlines(outline);
  json::array out;
  for (const ParameterPlacement& p : footprint.parameters) {
    json::object placement;
    for (const auto& [axis, where] : p.placement) placement[axis] = where;
    json::object row{{"name", p.name},
                     {"global_shape", list_of(p.global_shape)},
                     {"local_shape", list_of(p.local_shape)},
                     {"placement", placement}};
    const ParameterOutline* outlined = outlines.find(p.name);
    row["trainable"] = outlined == nullptr || outlined->trainable;
    if (outlined != nullptr && !outlined->trainable && outlined->dtype != plan.workload.storage)
      row["dtype"] = std::string(dtype_name(outlined->dtype));
    const bool copy = outlined != nullptr && !outlined->copy_of.empty();
    if (const auto rule = plan.groups.rule_of.find(copy ? outlined->copy_of : p.name);
        rule != plan.groups.rule_of.end()) {
      row["lr_factor"] = plan.groups.rules[rule->second].lr_factor;
      row["weight_decay"] = plan.groups.rules[rule->second].weight_decay;
    }
    if (p.local_range) row["local_range"] = json::array{p.local_range->begin, p.local_range->end};
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace

ModelOutline outline_of_rank(const JobPlan& plan) {
  if (!plan.pipeline) return *plan.outline;
  const int64_t stage_rank = plan.mesh.device_mesh->coordinate(plan.rank, "pp");
  return stage_outline(*plan.outline, *plan.pipeline, stage_rank);
}

ParametersByName::ParametersByName(const ModelOutline& outline) {
  parameters_.reserve(outline.parameters.size());
  for (const ParameterOutline& p : outline.parameters)
    parameters_.emplace(p.name, &p);  // the first counts
}

const ParameterOutline* ParametersByName::find(std::string_view name) const {
  const auto found = parameters_.find(name);
  return found == parameters_.end() ? nullptr : found->second;
}

json::object to_json(const JobPlan& plan) {
  json::object flattened;
  if (plan.mesh.device_mesh)
    for (const FlattenedAxis& axis : plan.mesh.device_mesh->flattened())
      flattened[axis.name] = list_of(axis.axes);
  json::array units, details, wire;
  if (plan.footprint) {
    for (const UnitCost& unit : plan.footprint->units) {
      units.emplace_back(unit.name);
      details.push_back(json::object{{"name", unit.name},
                                     {"parameters", unit.parameters},
                                     {"padded_bytes", unit.padded_bytes},
                                     {"reshards", unit.reshards},
                                     {"once_a_step", unit.once_a_step}});
    }
    for (const WireRow& row : plan.footprint->wire) {
      json::object sent{
          {"axis", row.axis}, {"op", row.op}, {"count", row.count}, {"bytes", row.bytes}};
      if (row.every != 1) sent["every"] = row.every;
      wire.push_back(std::move(sent));
    }
  }
  json::object out{
      {"strategy", plan.strategy.info->name},
      {"requested_strategy", plan.requested_strategy},
      {"world_size", plan.world_size},
      {"device_mesh", mesh_json(plan.mesh.device_mesh)},
      {"moe_mesh", mesh_json(plan.mesh.moe_mesh)},
      {"flattened", flattened},
      {"fsdp_mesh", plan.mesh.fsdp_axes.empty() ? json::value(nullptr)
                                                : json::value(list_of(plan.mesh.fsdp_axes))},
      {"dp", plan.mesh.dp},
      {"rank", rank_json(plan)},
      {"tp_plan", tp_json(plan.tp)},
      {"tp_plan_source", plan.tp.source},
      {"parameters", plan.footprint ? parameters_json(plan) : json::array()},
      {"units", units},
      {"unit_details", details},
      {"pipeline", pipeline_json(plan)},
      {"context", context_json(plan)}};
  out["bytes"] = nullptr;
  if (plan.footprint) {
    const Bytes& b = plan.footprint->bytes;
    out["bytes"] = json::object{{"weights", b.weights},
                                {"gradients", b.gradients},
                                {"optimizer", b.optimizer},
                                {"transient", b.transient},
                                {"activations", b.activations}};
  }
  // Activations with sequence parallelism and without; null where there is nothing to choose.
  json::value with = nullptr, without = nullptr;
  if (plan.other_activations) {
    int64_t chosen = plan.footprint->bytes.activations;
    with = cuts_sequence(plan.tp) ? chosen : *plan.other_activations;
    without = cuts_sequence(plan.tp) ? *plan.other_activations : chosen;
  }
  out["activations"] = json::object{{"sequence_parallel", cuts_sequence(plan.tp)},
                                    {"bytes_with_sequence_parallel", with},
                                    {"bytes_without_sequence_parallel", without}};
  out["wire"] = wire;
  out["workload"] = json::object{{"local_batch", plan.workload.local_batch},
                                 {"seq_len", plan.workload.seq_len},
                                 {"accumulation", plan.workload.accumulation}};
  out["max_steps"] = plan.max_steps ? json::value(*plan.max_steps) : json::value(nullptr);
  out["plugin"] = json::object{{"name", plan.strategy.plugin->name},
                               {"version", plan.strategy.plugin->version},
                               {"path", plan.strategy.plugin->path.string()}};
  out["notices"] = list_of(plan.notices);
  out["warnings"] = list_of(plan.warnings);
  return out;
}

}  // namespace meshwright::plan
