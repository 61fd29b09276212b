#include "engine/forecast/search.h"

#include <algorithm>
#include <cmath>

#include "engine/config/config.h"
#include "engine/plan/parameter_groups.h"
#include "sdk/base/pipeline.h"

namespace meshwright::forecast {
namespace {

using steptime::Layout;
using steptime::Way;

// Two layers tell how a strategy treats all of them.
ModelOutline shortened(ModelOutline outline) {
  auto beyond = [](const std::string& name) {
    const size_t at = name.find(".layers.");
    if (at == std::string::npos) return false;
    return std::atoll(name.c_str() + at + 8) >= 2;
  };
  std::erase_if(outline.parameters, [&](const ParameterOutline& p) { return beyond(p.name); });
  std::erase_if(outline.modules, [&](const ModuleOutline& m) { return beyond(m.name); });
  if (outline.windows.size() > 2) outline.windows.resize(2);
  outline.layers = std::min<int64_t>(outline.layers, 2);
  return outline;
}

// Whether the strategy has this kind of parallelism: two of four ranks of it.
bool takes(const Strategy& strategy, StrategyConfig config, int64_t ParallelSizes::* size) {
  config.shared.sizes = {};
  config.shared.sizes.*size = 2;
  MeshRequest request;
  request.world_size = 4;
  request.config = std::move(config);
  try {
    strategy.plan_mesh(request);
    return true;
  } catch (const Error&) {
    return false;
  }
}

bool cuts_sequences(const Strategy& strategy, StrategyConfig config) {
  config.shared.sizes.tp = 2;
  config.shared.sequence_parallel = true;
  Diagnostics said;
  strategy.validate(config, said);
  return said.ok();
}

Way way_of(const plan::Job& job, const loader::LoadedStrategy& loaded, const ModelOutline& outline,
           DType storage) {
  config::StrategySchema schema{loaded.info->name, loaded.info->aliases, loaded.info->schema};
  StrategyConfig config = job.config.strategy_config(schema);
  config.shared.sizes = {};
  const Strategy& strategy = *loaded.strategy;
  Way out;
  out.strategy = loaded.info->name;
  out.tp = takes(strategy, config, &ParallelSizes::tp);
  out.cp = takes(strategy, config, &ParallelSizes::cp);
  out.pp = takes(strategy, config, &ParallelSizes::pp);
  out.ep = takes(strategy, config, &ParallelSizes::ep);
  out.sequence = out.tp && cuts_sequences(strategy, config);
  out.replicas = takes(strategy, config, &ParallelSizes::dp_replicate);
  MeshRequest mesh;
  mesh.world_size = 2;
  mesh.config = config;
  const MeshPlan planned = strategy.plan_mesh(mesh);
  const TpPlan no_tp;
  Workload work;
  work.storage = storage;
  const ShardingPlan plan = strategy.plan_sharding({outline, planned, no_tp, config, work, 0});
  const MixedPrecision& mp = plan.replicated ? plan.replication.mp : plan.sharding.precision.mp;
  out.whole = plan.replicated;
  out.level = plan.sharding.level;
  out.rows = !plan.replicated && plan.sharding.layout == ShardLayout::rows;
  out.hidden = plan.replicated || (plan.sharding.reduction.overlap && plan.sharding.overlap_gather);
  out.reshards = std::any_of(plan.units.begin(), plan.units.end(),
                             [](const PlannedUnit& unit) { return unit.reshard_after_forward; });
  out.width = static_cast<double>(dtype_size(config.shared.autocast_dtype.value_or(mp.param)));
  out.reduced = static_cast<double>(dtype_size(mp.reduce));
  const auto stored = static_cast<double>(dtype_size(storage));
  const std::optional<DType> main =
      plan.replicated ? std::nullopt : plan.sharding.precision.main_weights;
  const std::optional<DType> kept = config.job.main_dtype ? config.job.main_dtype : main;
  const double state = kept ? static_cast<double>(dtype_size(*kept)) : stored;
  out.weights = stored;
  out.gradients = stored;
  out.optimizer = 2 * state + (kept && *kept != storage ? state : 0);
  return out;
}

// A strategy of this job, and those that hand no job on.
std::vector<Way> ways_of(plan::Job& job, const ModelOutline& outline, DType storage) {
  const ModelOutline part = shortened(outline);
  std::vector<Way> out;
  try {  // the job's own first: it is the one kept of several that are alike
    out.push_back(way_of(job, job.strategy, part, storage));
  } catch (const Error&) {
  }
  for (const loader::Listing& listing : job.registry->list()) {
    if (listing.plugin == nullptr) continue;
    for (const loader::StrategyInfo& info : listing.plugin->strategies) {
      const bool known = std::any_of(out.begin(), out.end(),
                                     [&](const Way& way) { return way.strategy == info.name; });
      if (known) continue;
      try {
        Way way = way_of(job, job.registry->create(*listing.plugin, info), part, storage);
        // One that moves and keeps the same as another would only fill the table.
        if (std::none_of(out.begin(), out.end(), [&](Way other) {
              other.strategy = way.strategy;
              return other == way;
            }))
          out.push_back(std::move(way));
      } catch (const Error&) {  // one that wants more of a job than sizes say
      }
    }
  }
  return out;
}

std::string recompute_name(steptime::Recompute recompute) {
  switch (recompute) {
    case steptime::Recompute::full:
      return "full";
    case steptime::Recompute::selective:
      return "selective";
    default:
      return "none";
  }
}

std::string n(double value) { return std::to_string(std::llround(value)); }

std::string sets_of(const Layout& layout, double layers, double global_batch) {
  const steptime::Job& job = layout.job;
  std::string out;
  auto set = [&](const std::string& key, const std::string& value) {
    out += (out.empty() ? "--set " : " --set ") + key + "=" + value;
  };
  set("distributed.strategy", layout.strategy);
  set("distributed.tp_size", n(job.tp));
  set("distributed.cp_size", n(job.cp));
  set("distributed.pp_size", n(job.pp));
  if (job.ep > 1) set("distributed.ep_size", n(job.ep));
  if (job.shard > 1 && job.replicas() > 1) set("distributed.dp_replicate_size", n(job.replicas()));
  set("distributed.sequence_parallel", job.tp > 1 && job.sequence_parallel ? "true" : "false");
  set("distributed.activation_checkpointing", recompute_name(job.recompute));
  set("step_scheduler.global_batch_size", n(global_batch));
  if (job.pp > 1) {
    const std::string table = "distributed.pipeline.";
    set("step_scheduler.local_batch_size", n(job.micro_batch * job.micro_batches));
    set(table + "pp_schedule", job.stages > 1 ? "Interleaved1F1B" : "1F1B");
    set(table + "layers_per_stage", n((layers + 2 * layout.less) / (job.pp * job.stages)));
    if (layout.less > 0) {
      set(table + "first_stage_less_layers", n(layout.less));
      set(table + "last_stage_less_layers", n(layout.less));
    }
    set(table + "pp_microbatch_size", n(job.micro_batch));
  } else {
    set("step_scheduler.local_batch_size", n(job.micro_batch));
  }
  return out;
}

[[noreturn]] void refuse(const steptime::SearchResult& result, const Wanted& wanted,
                         double memory) {
  if (result.enumerated == 0) {
    std::string why;
    for (const auto& [reason, count] : result.rejected)
      why += (why.empty() ? ": " : ", ") + reason + " (" + std::to_string(count) + ")";
    throw Error(ErrorCode::conflict, "no layout has the sizes that are asked for" + why)
        .key("--fix")
        .help(wanted.fixed.empty() ? "take another --world-size or --global-batch"
                                   : "leave out --fix");
  }
  const double least = result.smallest->predicted.memory.peak();
  const std::string needs = report::human_bytes(std::llround(least));
  throw Error(ErrorCode::memory_exceeded, "none of " + report::human_count(result.enumerated) +
                                              " layouts fits: the smallest needs " + needs +
                                              " of " + report::human_bytes(std::llround(memory)) +
                                              " a rank")
      .key("--machine")
      .help("a device with " + needs + " for a rank takes " + result.smallest->strategy +
            " with tp " + n(result.smallest->job.tp) + ", cp " + n(result.smallest->job.cp) +
            ", pp " + n(result.smallest->job.pp))
      .help("take more ranks: --world-size " + std::to_string(2 * wanted.world_size));
}

}  // namespace

Found search(plan::Job& job, const steptime::Machine& machine, const Wanted& wanted) {
  const std::optional<plan::JobModel> model = plan::model_of(job);
  if (!model)
    throw Error(ErrorCode::missing_key, "a search needs a model, and the file has none")
        .key("model.config")
        .help("set model.config to a config.json");
  const Options& data = job.config.table("dataset");
  const int64_t length = data.is_set("seq_len") ? data.get_int("seq_len") : 0;
  if (length <= 0)
    throw Error(ErrorCode::missing_key, "a search needs the length of a sample")
        .key("dataset.seq_len")
        .help("set dataset.seq_len = 4096");
  const DType storage = model->request.storage;
  ModelOutline outline = model->outline(job.config);
  std::vector<std::string> warnings;  // which the plan of a layout says
  plan::group_parameters(job.config, outline, warnings);

  steptime::SearchRequest request;
  request.machine = machine;
  request.shape = shape_of(outline);
  steptime::Job& base = request.base;
  base.length = static_cast<double>(length);
  base.fusion = steptime::Fusion::fused;
  base.loss = steptime::Loss::fused;
  base.optimizer_bytes = 44;
  base.logits = 4;  // in bfloat16, with their gradient; the loss makes no copy
  base.engine_memory = true;
  base.ranks_per_host =
      std::min(machine.network.ranks_per_host, static_cast<double>(wanted.world_size));
  request.ways = ways_of(job, outline, storage);
  request.ranks = static_cast<double>(wanted.world_size);
  request.global_batch = static_cast<double>(wanted.global_batch.value_or(
      job.config.table("step_scheduler").get_int("global_batch_size")));
  Found out;
  out.memory = std::min(machine.memory - machine.outside,
                        wanted.max_memory.value_or(machine.memory - machine.outside));
  request.memory = out.memory;
  request.fixed = wanted.fixed;
  out.result = steptime::search(request, wanted.most);
  if (out.result.best.empty()) refuse(out.result, wanted, out.memory);
  for (const Layout& layout : out.result.best) {
    out.forecasts.push_back(forecast(machine, request.shape, layout.job));
    out.sets.push_back(sets_of(layout, request.shape.layers, request.global_batch));
  }
  return out;
}

}  // namespace meshwright::forecast
