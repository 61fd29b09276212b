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
  auto beyond = [](const std::string& name) { return layer_of(name) >= 2; };
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

// How two ranks of dp, or of dp beside a pipeline, lie and move the model.
ShardingPlan plan_of(const Strategy& strategy, StrategyConfig config, const ModelOutline& outline,
                     DType storage, bool pipeline) {
  config.shared.sizes = {};
  if (pipeline) config.shared.sizes.pp = 2;
  MeshRequest mesh;
  mesh.world_size = pipeline ? 4 : 2;
  mesh.config = config;
  const MeshPlan planned = strategy.plan_mesh(mesh);
  const TpPlan no_tp;
  Workload work;
  work.storage = storage;
  return strategy.plan_sharding({outline, planned, no_tp, config, work, 0});
}

bool gathers_again(const ShardingPlan& plan) {
  return std::any_of(plan.units.begin(), plan.units.end(),
                     [](const PlannedUnit& unit) { return unit.reshard_after_forward; });
}

bool gathers_in_pipeline(const Strategy& strategy, const StrategyConfig& config,
                         const ModelOutline& outline, DType storage) {
  try {
    return gathers_again(plan_of(strategy, config, outline, storage, /*pipeline=*/true));
  } catch (const Error&) {  // a model that it makes no stages of
    return false;
  }
}

// What `config` makes of a way: what moves when, and in which dtypes.
void set_moves(const Strategy& strategy, const StrategyConfig& config, const ModelOutline& outline,
               DType storage, Way& out) {
  const ShardingPlan plan = plan_of(strategy, config, outline, storage, /*pipeline=*/false);
  const MixedPrecision& mp = plan.replicated ? plan.replication.mp : plan.sharding.precision.mp;
  out.whole = plan.replicated;
  out.level = plan.sharding.level;
  out.rows = !plan.replicated && plan.sharding.layout == ShardLayout::rows;
  out.hidden = plan.replicated || (plan.sharding.reduction.overlap && plan.sharding.overlap_gather);
  out.reshards = gathers_again(plan);
  out.reshards_in_pipeline = out.pp && gathers_in_pipeline(strategy, config, outline, storage);
  out.reduces_each = reduces_each(plan);
  out.ahead = static_cast<double>(plan.sharding.prefetch.ahead());
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
}

Way way_of(const loader::LoadedStrategy& loaded, StrategyConfig config, const ModelOutline& outline,
           DType storage) {
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
  set_moves(strategy, config, outline, storage, out);
  return out;
}

// The few values that an option of a strategy's own table can have.
std::vector<OptionValue> values_of(const meshwright_option& option) {
  constexpr double kMost = 8;
  if ((option.flags & MESHWRIGHT_NO_EFFECT) != 0) return {};
  if (option.choices != nullptr) return {};  // words: formats and places, not amounts
  if ((option.type & MESHWRIGHT_BOOL) != 0) return {true, false};
  std::vector<OptionValue> out;
  if ((option.type & MESHWRIGHT_INT) != 0 &&
      (option.flags & (MESHWRIGHT_NO_MIN | MESHWRIGHT_NO_MAX)) == 0 &&
      option.max - option.min < kMost)
    for (int64_t value = std::llround(option.min); value <= std::llround(option.max); ++value)
      out.emplace_back(value);
  return out;
}

// What a search may choose: the numbers of training stay, and nothing gets worse in time without
// holding less, as what is not hidden or fetched further ahead would.
bool worth(const Way& base, const Way& way) {
  return way.width == base.width && way.reduced == base.reduced && way.weights == base.weights &&
         way.gradients == base.gradients && way.optimizer == base.optimizer &&
         way.whole == base.whole && (way.hidden || !base.hidden) && way.ahead <= base.ahead;
}

// A strategy as the job has it, and as options of its own table that the file leaves open would
// have it: its levels, what stays gathered, when gradients are reduced, what is fetched ahead.
// Which options these are nobody says: those that change how its plan moves the model.
std::vector<Way> ways_of_strategy(const plan::Job& job, const loader::LoadedStrategy& loaded,
                                  const ModelOutline& outline, DType storage) {
  constexpr size_t kMost = 12;
  config::StrategySchema schema{loaded.info->name, loaded.info->aliases, loaded.info->schema};
  struct Variant {
    Way way;
    StrategyConfig config;
  };
  std::vector<Variant> found;
  found.push_back({{}, job.config.strategy_config(schema)});
  found.front().config.shared.sizes = {};
  found.front().way = way_of(loaded, found.front().config, outline, storage);
  const Options given = found.front().config.own;
  auto known = [&](Way way) {
    return std::any_of(found.begin(), found.end(), [&](const Variant& other) {
      way.options = other.way.options;
      return way == other.way;
    });
  };
  for (const meshwright_option* option : given.schema().options) {
    if (given.is_given(option->name)) continue;
    const std::vector<OptionValue> values = values_of(*option);
    for (size_t i = 0, before = found.size(); i < before; ++i)
      for (const OptionValue& value : values) {
        if (found.size() >= kMost) break;
        Variant next = found[i];
        try {
          next.config.own.set(option->name, value);
          Diagnostics said;
          loaded.strategy->validate(next.config, said);
          if (!said.ok()) continue;
          set_moves(*loaded.strategy, next.config, outline, storage, next.way);
        } catch (const Error&) {  // one that this option makes no plan of
          continue;
        }
        next.way.options.push_back(given.schema().table + "." + option->name + "=" +
                                   to_toml(value));
        if (worth(found.front().way, next.way) && !known(next.way)) found.push_back(next);
      }
  }
  std::vector<Way> out;
  for (Variant& variant : found) out.push_back(std::move(variant.way));
  return out;
}

// A strategy of this job, and those that hand no job on.
std::vector<Way> ways_of(plan::Job& job, const ModelOutline& outline, DType storage) {
  const ModelOutline part = shortened(outline);
  std::vector<Way> out;
  // One that moves and keeps the same as another would only fill the table.
  auto add = [&](const loader::LoadedStrategy& strategy) {
    for (Way& way : ways_of_strategy(job, strategy, part, storage))
      if (std::none_of(out.begin(), out.end(), [&](Way other) {
            if (other.strategy == way.strategy) return false;
            other.strategy = way.strategy;
            other.options = way.options;
            return other == way;
          }))
        out.push_back(std::move(way));
  };
  try {  // the job's own first: it is the one kept of several that are alike
    add(job.strategy);
  } catch (const Error&) {
  }
  for (const loader::Listing& listing : job.registry->list()) {
    if (listing.plugin == nullptr) continue;
    for (const loader::StrategyInfo& info : listing.plugin->strategies) {
      const bool known = std::any_of(out.begin(), out.end(),
                                     [&](const Way& way) { return way.strategy == info.name; });
      if (known) continue;
      try {
        add(job.registry->create(*listing.plugin, info));
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
  for (const std::string& option : layout.options) out += " --set " + option;
  if (job.ep > 1) set("distributed.ep_size", n(job.ep));
  if (job.shard > 1 && job.replicas() > 1) set("distributed.dp_replicate_size", n(job.replicas()));
  set("distributed.sequence_parallel", job.tp > 1 && job.sequence_parallel ? "true" : "false");
  set("distributed.activation_checkpointing", recompute_name(job.recompute));
  set("step_scheduler.global_batch_size", n(global_batch));
  if (job.pp > 1) {
    const std::string table = "distributed.pipeline.";
    set("step_scheduler.local_batch_size", n(job.micro_batch * job.micro_batches));
    set(table + "pp_schedule", std::string(schedule_name(job.schedule)));
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
  if (const steptime::Shape& s = request.shape;
      s.hidden <= 0 || s.layers <= 0 || s.heads <= 0 || s.kv_heads <= 0 || s.head_dim <= 0)
    throw Error(ErrorCode::missing_key, "a search needs a model's sizes, and the outline of " +
                                            model->name() +
                                            " does not say its width, layers and heads")
        .key("model." + model->key)
        .help(
            "let the model's family fill in hidden_size, layers, attention_heads, "
            "key_value_heads and head_dim of its outline");
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
  request.schedules = {PipelineSchedule::interleaved_zero_bubble, PipelineSchedule::zbv_zero_bubble,
                       PipelineSchedule::dual_pipe_v};
  out.result = steptime::search(request, wanted.most);
  if (out.result.best.empty()) refuse(out.result, wanted, out.memory);
  for (const Layout& layout : out.result.best) {
    out.forecasts.push_back(forecast(machine, request.shape, layout.job));
    out.sets.push_back(sets_of(layout, request.shape.layers, request.global_batch));
  }
  return out;
}

}  // namespace meshwright::forecast
