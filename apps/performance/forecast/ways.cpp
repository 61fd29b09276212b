// What strategies can do, asked of their own hooks, and how they move a model, by the rows of their
// plans.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "apps/performance/forecast/forecast.h"
#include "apps/performance/forecast/layouts.h"
#include "engine/job/adapters.h"
#include "engine/job/parameter_groups.h"
#include "meshwright/footprint.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/base/words.h"

namespace meshwright::forecast {
namespace {

using steptime::Way;

// Two layers tell how a strategy treats all of them. Of a model that is frozen up to some layer
// these are the last, which train.
ModelOutline shortened(ModelOutline outline) {
  auto trains = [&](int64_t layer) {
    return std::ranges::any_of(outline.parameters, [&](const ParameterOutline& p) {
      return p.trainable && layer_of(p.name) == layer;
    });
  };
  const int64_t first = trains(0) || trains(1) ? 0 : std::max<int64_t>(outline.layers - 2, 0);
  auto beyond = [&](const std::string& name) {
    const int64_t layer = layer_of(name);
    return layer >= 0 && (layer < first || layer >= first + 2);
  };
  std::erase_if(outline.parameters, [&](const ParameterOutline& p) { return beyond(p.name); });
  std::erase_if(outline.modules, [&](const ModuleOutline& m) { return beyond(m.name); });
  if (outline.windows.size() > 2) outline.windows.resize(2);
  outline.layers = std::min<int64_t>(outline.layers, 2);
  return outline;
}

// Whether the strategy itself has this kind of parallelism: two of four ranks of it. `delegate`:
// whom it hands such a job on to.
bool takes(const Strategy& strategy, StrategyConfig config, int64_t ParallelSizes::* size,
           std::string* delegate = nullptr) {
  config.shared().sizes = {};
  config.shared().sizes.*size = 2;
  MeshRequest request;
  request.world_size = 4;
  request.config = std::move(config);
  try {
    const MeshPlan mesh = strategy.plan_mesh(request);
    if (mesh.delegate_to.empty()) return true;
    if (delegate != nullptr) *delegate = mesh.delegate_to;
  } catch (const Error&) {
  }
  return false;
}

bool cuts_sequences(const Strategy& strategy, StrategyConfig config, bool async) {
  config.shared().sizes.tp = 2;
  config.shared().sequence_parallel = true;
  config.shared().enable_async_tensor_parallel = async;
  Diagnostics said;
  strategy.validate(config, said);
  return said.ok();
}

// How two ranks of dp, or of dp beside a pipeline, lie and move the model in a step of two
// micro-batches.
struct TwoRanks {
  ShardingPlan plan;
  DataMoved moved;
};
TwoRanks plan_of(const Strategy& strategy, StrategyConfig config, const Trained& model,
                 bool pipeline) {
  config.shared().sizes = {};
  if (pipeline) config.shared().sizes.pp = 2;
  MeshRequest mesh;
  mesh.world_size = pipeline ? 4 : 2;
  mesh.config = config;
  const MeshPlan planned = strategy.plan_mesh(mesh);
  const TpPlan no_tp;
  Workload work = model.work;
  work.accumulation = 2;
  const ShardingRequest request{model.outline, planned, no_tp, config, work, 0};
  TwoRanks out;
  out.plan = strategy.plan_sharding(request);
  out.moved = data_moved(footprint_of(request, out.plan).schedule, 2);
  return out;
}

bool gathers_in_pipeline(const Strategy& strategy, const StrategyConfig& config,
                         const Trained& model) {
  try {
    return plan_of(strategy, config, model, /*pipeline=*/true).moved.gathered_again > 0;
  } catch (const Error&) {  // a model that it makes no stages of
    return false;
  }
}

// What `config` makes of a way: what moves when, and in which dtypes.
void set_moves(const Strategy& strategy, const StrategyConfig& config, const Trained& model,
               Way& out) {
  const auto [plan, moved] = plan_of(strategy, config, model, /*pipeline=*/false);
  const ShardingPolicy& sharding = plan.sharding;
  const MixedPrecision& mp = plan.replicated ? plan.replication.mp : sharding.precision.mp;
  const DType storage = model.work.storage;
  out.whole = plan.replicated;
  out.level = sharding.level;
  out.rows = !plan.replicated && sharding.layout == ShardLayout::rows;
  out.hidden = moved.hidden;
  // Rows say whether units are fetched ahead, and the policy how many where they come and go.
  const int64_t units =
      plan.replicated || sharding.keeps_parameters() ? 1 : sharding.prefetch.ahead();
  out.ahead = moved.gathered > 0 && !moved.fetched_ahead
                  ? 0
                  : static_cast<double>(std::max<int64_t>(units, 1));
  out.reshards = moved.gathered_again > 0;
  out.reshards_in_pipeline = out.pp && gathers_in_pipeline(strategy, config, model);
  out.reduces_each = moved.reductions > 1;
  out.width = static_cast<double>(dtype_size(config.shared().autocast_dtype.value_or(mp.param)));
  out.reduced = static_cast<double>(dtype_size(mp.reduce));
  out.buckets =
      plan.replicated && (!plan.replication.gradient_as_bucket_view || mp.reduce != storage);
  const auto stored = static_cast<double>(dtype_size(storage));
  const std::optional<DType> main =
      plan.replicated ? std::nullopt : sharding.precision.main_weights;
  const bool apart = !plan.replicated && sharding.precision.main_gradients.has_value();
  const bool adds_up = out.rows && out.reduces_each && dtype_size(mp.reduce) > dtype_size(storage);
  const DType sums = apart ? *sharding.precision.main_gradients : adds_up ? mp.reduce : storage;
  const std::optional<DType> kept = config.job().main_dtype ? config.job().main_dtype : main;
  const double state = kept ? static_cast<double>(dtype_size(*kept)) : stored;
  out.weights = stored;
  out.gradients = static_cast<double>(dtype_size(sums));
  out.optimizer = static_cast<double>(model.work.optimizer_states) * state +
                  (kept && *kept != storage ? state : 0);
  out.on_host = !plan.replicated && sharding.offload.cpu;
  out.frozen = model.frozen;
  out.frozen_whole = model.frozen > 0 && config.job().frozen_whole;
}

// A model as a whole, and the ranks that a search has for it.
struct Whole {
  const ModelOutline& outline;
  Workload work;
  int64_t ranks;
};

double all_bytes(const Bytes& b) {
  return static_cast<double>(b.weights + b.gradients + b.optimizer + b.transient);
}

// What the strategy's own cost makes of its plan on so many ranks of dp, over what that alone comes
// to. Throws what its hooks throw.
steptime::OwnCount own_count(const Strategy& strategy, StrategyConfig config, const Whole& model) {
  steptime::OwnCount out;
  config.shared().sizes = {};
  MeshRequest mesh;
  mesh.world_size = model.ranks;
  mesh.config = config;
  const MeshPlan planned = strategy.plan_mesh(mesh);
  if (!planned.device_mesh) return out;  // handed on, or without axes that a plan could name
  const TpPlan no_tp;
  for (const int64_t accumulation : {int64_t{1}, int64_t{2}}) {
    Workload work = model.work;
    work.accumulation = accumulation;
    const ShardingRequest request{model.outline, planned, no_tp, config, work, 0};
    ShardingPlan plan = strategy.plan_sharding(request);
    if (!plan.own_cost) return out;
    const Bytes own = footprint_of(request, plan).bytes;
    plan.own_cost.reset();
    const Bytes said = footprint_of(request, plan).bytes;
    if (all_bytes(said) <= 0) continue;
    (accumulation == 1 ? out.once : out.waiting) = all_bytes(own) / all_bytes(said);
    // More states than an optimizer has are not updated by it.
    if (said.optimizer > 0)
      out.updated =
          std::min(1.0, static_cast<double>(own.optimizer) / static_cast<double>(said.optimizer));
  }
  return out;
}

// A strategy with a cost of its own may keep less than its plan says, or more.
bool counts_itself(const Strategy& strategy, const StrategyConfig& config, const Trained& model) {
  try {
    return own_count(strategy, config, {model.outline, model.work, 2}) != steptime::OwnCount{};
  } catch (const Error&) {  // which its plans will say
    return false;
  }
}

// Its counts on all numbers of ranks that dp and cp can have.
std::map<double, steptime::OwnCount> own_counts(const Strategy& strategy,
                                                const StrategyConfig& config, const Whole& model) {
  std::map<double, steptime::OwnCount> out;
  auto ask = [&](int64_t ranks) {
    try {
      out.emplace(static_cast<double>(ranks),
                  own_count(strategy, config, {model.outline, model.work, ranks}));
    } catch (const Error&) {  // a number that it makes no plan of
    }
  };
  for (int64_t ranks = 1; ranks * ranks <= model.ranks; ++ranks) {
    if (model.ranks % ranks != 0) continue;
    ask(ranks);
    if (ranks * ranks < model.ranks) ask(model.ranks / ranks);
  }
  return out;
}

// `delegates`: strategies that others hand jobs with experts on to.
Way way_of(const loader::LoadedStrategy& loaded, StrategyConfig config, const Trained& model,
           std::set<std::string>& delegates) {
  config.shared().sizes = {};
  const Strategy& strategy = *loaded.strategy;
  Way out;
  out.strategy = loaded.info->name;
  out.tp = takes(strategy, config, &ParallelSizes::tp);
  out.cp = takes(strategy, config, &ParallelSizes::cp);
  out.pp = takes(strategy, config, &ParallelSizes::pp);
  std::string delegate;
  out.ep = takes(strategy, config, &ParallelSizes::ep, &delegate);
  if (!delegate.empty()) delegates.insert(delegate);
  out.sequence = out.tp && cuts_sequences(strategy, config, /*async=*/false);
  out.async = out.sequence && config.shared().enable_async_tensor_parallel &&
              cuts_sequences(strategy, config, /*async=*/true);
  out.replicas = takes(strategy, config, &ParallelSizes::dp_replicate);
  set_moves(strategy, config, model, out);
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
         way.on_host == base.on_host && way.whole == base.whole && (way.hidden || !base.hidden) &&
         way.ahead <= base.ahead && (!way.buckets || base.buckets);
}

// What the user frees of what the file sets, and the options that could be.
struct Free {
  const std::set<std::string>& keys;
  std::set<std::string> known = {};
};

// A strategy as the job has it, and as options of its own table that the file leaves open would
// have it: its levels, what stays gathered, when gradients are reduced, what is fetched ahead.
// Which options these are nobody says: those that change how its plan moves the model.
std::vector<Way> ways_of_strategy(const plan::Job& job, const loader::LoadedStrategy& loaded,
                                  const Trained& model, const Whole& whole,
                                  std::set<std::string>& delegates, Free& freed) {
  constexpr size_t kMost = 12;
  config::StrategySchema schema{loaded.info->name, loaded.info->aliases, loaded.info->schema};
  struct Variant {
    Way way;
    StrategyConfig config;
  };
  std::vector<Variant> found;
  found.push_back({{}, job.config.strategy_config(schema)});
  found.front().config.shared().sizes = {};
  found.front().way = way_of(loaded, found.front().config, model, delegates);
  // Options are asked about where no size of the file makes a rule of them.
  found.front().config.shared().sequence_parallel = false;
  found.front().config.shared().enable_async_tensor_parallel = false;
  const Options given = found.front().config.own();
  auto known = [&](Way way) {
    return std::ranges::any_of(found, [&](const Variant& other) {
      way.options = other.way.options;
      return way == other.way;
    });
  };
  for (const meshwright_option* option : given.schema().options) {
    const std::vector<OptionValue> values = values_of(*option);
    const std::string key = given.schema().table + "." + option->name;
    if (!values.empty()) freed.known.insert(key);
    if (given.is_given(option->name) && !freed.keys.contains(key)) continue;
    for (size_t i = 0, before = found.size(); i < before; ++i)
      for (const OptionValue& value : values) {
        if (found.size() >= kMost) break;
        Variant next = found[i];
        try {
          next.config.own().set(option->name, value);
          Diagnostics said;
          loaded.strategy->validate(next.config, said);
          if (!said.ok()) continue;
          set_moves(*loaded.strategy, next.config, model, next.way);
        } catch (const Error&) {  // one that this option makes no plan of
          continue;
        }
        next.way.options.push_back(key + "=" + to_toml(value));
        if (worth(found.front().way, next.way) && !known(next.way)) found.push_back(next);
      }
  }
  std::vector<Way> out;
  const bool own = counts_itself(*loaded.strategy, found.front().config, model);
  for (Variant& variant : found) {
    if (own) variant.way.own = own_counts(*loaded.strategy, variant.config, whole);
    out.push_back(std::move(variant.way));
  }
  return out;
}

// The name of a strategy that another one hands jobs on to.
std::string named_strategy(const plan::Job& job, const std::string& name) {
  try {
    return job.registry->find(name).info->name;
  } catch (const Error&) {
    return name;
  }
}

void check_free(const Free& freed) {
  const std::vector<std::string> known(freed.known.begin(), freed.known.end());
  for (const std::string& key : freed.keys) {
    if (freed.known.contains(key)) continue;
    Error error(ErrorCode::usage,
                "--free " + report::printable(key) +
                    " is no option of a strategy's own table that a search tries");
    if (const std::string near = nearest_name(key, known); !near.empty())
      error.help("did you mean --free " + near + "?");
    throw error.help("--free KEY with KEY one of " + text::join(known, ", "))
        .help("sizes, schedule and recomputation of the file need no --free: --fix keeps a size");
  }
}

}  // namespace

Trained trained_model(plan::Job& job) {
  const std::optional<plan::JobModel> model = plan::model_of(job);
  if (!model)
    throw Error(ErrorCode::missing_key, "a search needs a model, and the file has none")
        .key("model.config")
        .help("set model.config to a config.json");
  Trained out;
  out.outline = model->outline(job.config);
  out.work.storage = model->request.storage;
  if (plan::add_adapters(job.config, out.outline).any())
    out.work.storage = plan::trained_dtype(out.outline, out.work.storage);
  std::vector<std::string> warnings;  // which the plan of a layout says
  plan::group_parameters(job.config, out.outline, warnings);
  const Options& optimizer = job.config.table("optimizer");
  if (optimizer.get_string("name") == "sgd")
    out.work.optimizer_states = optimizer.get_number("momentum") > 0 ? 1 : 0;
  double elements = 0, bytes = 0;
  for (const ParameterOutline& p : out.outline.parameters) {
    if (p.trainable) continue;
    const auto count = static_cast<double>(element_count(p.shape));
    elements += count;
    bytes += count * static_cast<double>(dtype_size(p.dtype));
  }
  if (elements > 0) out.frozen = bytes / elements;
  if (const steptime::Shape s = shape_of(out.outline);
      s.hidden <= 0 || s.layers <= 0 || s.heads <= 0 || s.kv_heads <= 0 || s.head_dim <= 0)
    throw Error(ErrorCode::missing_key, "a search needs a model's sizes, and the outline of " +
                                            model->name() +
                                            " does not say its width, layers and heads")
        .key("model." + model->key)
        .help(
            "let the model's family fill in hidden_size, layers, attention_heads, "
            "key_value_heads and head_dim of its outline");
  return out;
}

std::vector<Way> strategy_ways(plan::Job& job, Trained model, const std::set<std::string>& keys,
                               int64_t ranks) {
  const ModelOutline all = model.outline;
  const Whole whole{all, model.work, ranks};
  model.outline = shortened(std::move(model.outline));
  std::vector<Way> out;
  std::set<std::string> delegates;
  Free freed{keys};
  // One that moves and keeps the same as another would only fill the table.
  auto add = [&](const loader::LoadedStrategy& strategy) {
    for (Way& way : ways_of_strategy(job, strategy, model, whole, delegates, freed))
      if (std::ranges::none_of(out, [&](Way other) {
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
      const bool known =
          std::ranges::any_of(out, [&](const Way& way) { return way.strategy == info.name; });
      if (known) continue;
      try {
        add(job.registry->create(*listing.plugin, info));
      } catch (const Error&) {  // one that wants more of a job than sizes say
      }
    }
  }
  check_free(freed);
  // Who takes jobs with experts from others has nothing to do for a model without.
  if (!model.outline.moe)
    for (const std::string& delegate : delegates) {
      const std::string name = named_strategy(job, delegate);
      if (name != job.strategy.info->name)
        std::erase_if(out, [&](const Way& way) { return way.strategy == name; });
    }
  return out;
}

}  // namespace meshwright::forecast
