#include "footprint_parts.h"

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "meshwright/error.h"
#include "sdk/base/text.h"

namespace meshwright::footprint {
namespace {

Axis axis_of(const Mesh& mesh, const std::string& name, int64_t rank) {
  return {name, mesh.size(name), mesh.has_axis(name) ? mesh.coordinate(rank, name) : 0};
}

// ep sizes near the wish that cut every expert parameter evenly in a stage of `ranks`.
std::vector<int64_t> working_ep_sizes(int64_t ranks, int64_t wish,
                                      const std::vector<std::vector<int64_t>>& shapes) {
  std::vector<int64_t> out;
  for (int64_t ep = 1; ep <= ranks; ++ep) {
    if (ranks % ep != 0) continue;
    bool fits = std::all_of(shapes.begin(), shapes.end(), [&](const std::vector<int64_t>& shape) {
      return shape[0] % ep == 0 && (ep == 1 || shape.size() < 2 || shape[1] % (ranks / ep) == 0);
    });
    if (fits) out.push_back(ep);
  }
  std::stable_sort(out.begin(), out.end(),
                   [&](int64_t a, int64_t b) { return std::abs(a - wish) < std::abs(b - wish); });
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
  if (shapes.empty() && !request.outline.moe)
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

}  // namespace

Layout make_layout(const ShardingRequest& request) {
  Layout layout;
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
    if (!share.expert && layout.tp.size > 1)
      share.tp_dim = tp_shard_dim(request.tp, request.outline, parameter.name);
    share.part = Region::whole(share.shape);
    if (share.tp_dim) {
      const auto dim = static_cast<size_t>(*share.tp_dim);
      int64_t& rows = share.shape.at(dim);
      Chunk chunk = ceil_chunk(rows, layout.tp.size, layout.tp.index);
      rows = chunk.end - chunk.begin;
      share.part.offsets[dim] = chunk.begin;
      share.part.sizes[dim] = rows;
    }
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
  return layout;
}

std::vector<UnitParameter> unit_parameters(const ShardingRequest& request, const Layout& layout,
                                           const std::vector<size_t>& parameters) {
  std::vector<UnitParameter> out;
  out.reserve(parameters.size());
  for (size_t p : parameters) {
    const Share& share = layout.shares[p];
    const ParameterOutline& outline = request.outline.parameters[p];
    UnitParameter& parameter =
        out.emplace_back(UnitParameter{outline.name, share.shape, outline.trainable});
    if (share.tp_dim)
      mark_cut(parameter, outline.shape, static_cast<size_t>(*share.tp_dim), layout.tp.size);
  }
  return out;
}

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

ModuleIndex::ModuleIndex(const ModelOutline& outline) {
  for (const ModuleOutline& module : outline.modules) modules_[module.name] = &module;
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

int64_t sum_of_largest(std::vector<int64_t> values, int64_t count) {
  std::sort(values.begin(), values.end(), std::greater<>());
  int64_t sum = 0;
  for (size_t i = 0; i < values.size() && static_cast<int64_t>(i) < count; ++i)
    sum = plus(sum, values[i]);
  return sum;
}

MixedPrecision precision_of(const ShardingRequest& request) {
  const SharedOptions& shared = request.config.shared;
  return request.mesh.moe_mesh && shared.moe.mp_policy ? *shared.moe.mp_policy : shared.mp;
}

int64_t pipeline_size(const ShardingRequest& request) {
  return request.mesh.device_mesh ? request.mesh.device_mesh->size("pp") : 1;
}

int64_t runs_of(const ShardingRequest& request) {
  const Workload& work = request.workload;
  int64_t runs = std::max<int64_t>(work.accumulation, 1);
  if (pipeline_size(request) == 1) return runs;
  // One run of the schedule takes pp_batch_size samples.
  int64_t batch = std::max<int64_t>(request.config.shared.pipeline.batch_size, 1);
  return times(runs,
               std::max<int64_t>(work.local_batch / batch + (work.local_batch % batch != 0), 1));
}

int64_t micro_batches_of(const ShardingRequest& request) {
  if (pipeline_size(request) == 1) return 1;
  const PipelineOptions& pipeline = request.config.shared.pipeline;
  return std::max<int64_t>(pipeline.batch_size / std::max<int64_t>(pipeline.microbatch_size, 1), 1);
}

int64_t passes_of(const ShardingRequest& request) {
  return times(runs_of(request), micro_batches_of(request));
}

int64_t scaled(int64_t a, int64_t b, int64_t c) {
  return plus(times(a / c, b), times(a % c, b) / c);
}

void Traffic::add(const Axis& axis, std::string_view op, int64_t count, int64_t payload) {
  if (axis.size <= 1 || count == 0 || payload == 0) return;
  auto at = std::find_if(sums_.begin(), sums_.end(),
                         [&](const Sum& sum) { return sum.axis == axis.name && sum.op == op; });
  if (at == sums_.end())
    at = sums_.insert(sums_.end(), {axis.name, std::string(op), axis.size, 0, 0});
  at->count = plus(at->count, count);
  at->payload = plus(at->payload, times(count, payload));
}

std::vector<WireRow> Traffic::rows() const {
  std::vector<WireRow> out;
  for (const Sum& sum : sums_) {
    int64_t bytes = sum.payload;
    if (sum.op == "all_reduce")
      bytes = scaled(sum.payload, 2 * (sum.size - 1), sum.size);
    else if (sum.op != "send")
      bytes = scaled(sum.payload, sum.size - 1, sum.size);
    out.push_back({sum.axis, sum.op, sum.count, bytes});
  }
  return out;
}

}  // namespace meshwright::footprint
