// A job on paper: from a checked configuration to meshes, tensor-parallel plan, pipeline stages and
// cost. Starts nothing.
#pragma once

#include <boost/json/object.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/config/config.h"
#include "engine/job/parameter_groups.h"
#include "engine/plugins/registry.h"
#include "meshwright/footprint.h"
#include "meshwright/strategy.h"
#include "sdk/base/context_plan.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/run_memory.h"
#include "sdk/base/shared_schemas.h"

namespace meshwright::plan {

struct Trained {
  int64_t steps = 0, samples = 0;
};

// A configuration together with the plugins it names: what `plan`, `validate` and `config show`
// start from.
struct Job {
  config::Config config;
  std::unique_ptr<loader::Registry> registry;
  loader::LoadedStrategy strategy;  // as requested
  std::vector<config::StrategySchema>
      schemas;  // of the requested strategy and of those whose tables occur
  // What model.plugin, dataset.plugin and validation_dataset.plugin name.
  std::optional<loader::LoadedModel> model;
  std::optional<loader::LoadedDataset> dataset, validation_dataset;
  // Of [dataset], where a run is counted in epochs and somebody has opened it.
  std::optional<int64_t> samples;
  // What the checkpoint has done that the run goes on from; nullopt: it begins, or nobody has
  // looked. Of runs that are counted in epochs.
  std::optional<Trained> trained;
  // The adapters get their values with the model's, from a checkpoint or lora.adapter: a Trainer
  // does not read that by itself.
  bool fills_adapters = false;
};

// Loads and checks everything; problems go to `diagnostics`. nullopt when the strategy cannot be
// had or the file cannot be read.
std::optional<Job> load_job(const config::LoadOptions& options, Diagnostics& diagnostics);
std::optional<Job> load_job(const config::Source& source, Diagnostics& diagnostics);

// The model that a job names, whichever family it is of.
struct JobModel {
  std::shared_ptr<const ModelFamily> family;
  const loader::LoadedPlugin* plugin = nullptr;  // nullptr: the family is built in
  ModelRequest request;
  std::string key;           // of [model]: what names it
  std::string name() const;  // the file or folder, else the family; for messages
  // Throws with the key, and the place where it was written.
  ModelOutline outline(const config::Config& config) const;
  // An error of the family with both, and with what helps where its file is not there.
  Error located(Error error, const config::Config& config) const;
};
// What the patterns of distributed.tp_plan say of modules that stand whole among the projections of
// a block is added to what the outline says.
void say_what_is_seen(ModelOutline& outline, const TpPlanChoice& choice);
// nullopt: the job names none.
std::optional<JobModel> model_of(const Job& job);
// What makes the same model of a config.json again, where that needs more than the file: settings
// as --set takes them, a line each.
std::string model_settings(const Job& job);

// What training needs beyond a plan: a model, data, sizes and keys of this release. Adds an error
// for each thing that is missing.
void check_trainable(const Job& job, Diagnostics& diagnostics);

// Beyond this, sizes are taken for mistakes: their products and the lists of ranks stay small below
// it.
inline constexpr int64_t kMostRanks = int64_t{1} << 22;
// Throws Error(out_of_range | 3xx) when the world, or the sizes together, are above kMostRanks.
void check_rank_limits(const Job& job, std::optional<int64_t> world);

struct PlanRequest {
  int64_t world_size = 1;
  int64_t rank = 0;
  // The world is only assumed: the batch is not held against it.
  bool assumed_world = false;
  // The host of each rank, by any number; empty: not known, and taken for one host, or for hosts
  // that so many ranks fill one after the other.
  std::vector<int64_t> hosts = {};
  int64_t ranks_per_host = 0;
  // Where the ranks compute; unknown: where dist_env.device says.
  MemoryFacts::Where where = MemoryFacts::Where::unknown;
  // Whether JobPlan::other_activations are asked for: they cost a second tensor-parallel plan and
  // footprint.
  bool compares_sequence = true;
};

// Whether the work of each layer is launched as CUDA graphs: dist_env.cuda_graphs requires it, a
// strategy's enable_compile asks for it where the job allows it.
enum class LayerGraphsUse { off, where_possible, required };

struct JobPlan {
  std::string requested_strategy;   // as written
  loader::LoadedStrategy strategy;  // the one that owns the job
  int64_t world_size = 1, rank = 0;
  MeshPlan mesh;
  SharedOptions shared;
  std::optional<ModelOutline> outline;  // the whole model; what is frozen is marked
  ParameterGroups groups;               // needs a model
  TpPlan tp;
  std::optional<PipelinePlan> pipeline;
  std::vector<ContextCost> context_costs;  // of each method
  std::optional<ContextPlan> context;      // needs a model
  // Of the rank; they need a model.
  std::shared_ptr<const ShardingPlan> sharding;
  std::optional<Footprint> footprint;
  // Activations of the rank were sequence_parallel the other way; nullopt where that makes no
  // difference, cannot be or was not asked for.
  std::optional<int64_t> other_activations;
  MemoryFacts memory;  // which the footprint goes by
  LayerGraphsUse layer_graphs = LayerGraphsUse::off;
  // why_parameters_move(); known where layer_graphs is not off.
  ParametersMove parameters_move;
  Workload workload;
  std::optional<int64_t> max_steps;  // nullopt: epochs of data that nobody has opened
  std::vector<std::string> notices, warnings;
  // Of a trainer's plan: [lora], and what a checkpoint of its adapters carries (peft_config()).
  Options lora;
  std::string adapter_config;
};

// Why layers cannot be launched as CUDA graphs, and what would let them: a graph holds neither what
// moves nor what differs from step to step. Both are empty where they can.
struct LayerGraphsRefusal {
  std::string what, help;
};
LayerGraphsRefusal why_no_layer_graphs(const JobPlan& plan, const Job& job);

// Whether a run would read this table of data. One that nobody wrote has nothing to read.
bool reads_data(const Options& table);

using meshwright::cuts_sequence;
// Throws Error(model_does_not_fit) when the samples of a data set in use do not divide by tp under
// such a plan.
void check_sequence(const Job& job, const TpPlan& tp);
// What a sharding plan costs a rank, by plan.memory too.
Footprint footprint_here(const JobPlan& plan, const ShardingRequest& cost,
                         const ShardingPlan& sharding);
// `part`: the outline of this rank's stages; the rest of the plan is complete.
std::optional<int64_t> other_activations(const JobPlan& plan, const StrategyConfig& config,
                                         const ModelOutline& part);

// Throws Error: 3xx when the job does not fit, 2xx for the model's configuration.
JobPlan make_plan(Job& job, const PlanRequest& request);

// The outline of what the plan's rank has of the model: of a pipeline's rank, its stages.
ModelOutline outline_of_rank(const JobPlan& plan);
// ModelOutline::find_parameter() for many names, of an outline that outlives it.
class ParametersByName {
 public:
  explicit ParametersByName(const ModelOutline& outline);
  const ParameterOutline* find(std::string_view name) const;

 private:
  std::unordered_map<std::string_view, const ParameterOutline*> parameters_;
};
// What the plan's strategy was asked with, sizes that came of "auto" included.
StrategyConfig config_of_plan(const Job& job, const JobPlan& plan);
// The plan with the footprint of another rank of it. What else it says of a rank (costs of methods,
// activations the other way, notices) stays that of the plan's own.
JobPlan plan_of_rank(const Job& job, const JobPlan& plan, int64_t rank);

// Every axis of the plan with the rank's coordinate and group: real axes, flattened ones, expert
// axes; ddp: dp.
struct AxisView {
  std::string name;
  int64_t size = 1, coordinate = 0;
  bool flattened = false, expert = false;
  std::vector<int64_t> group;
};
std::vector<AxisView> axes_of(const JobPlan& plan);

// The machine form.
boost::json::object to_json(const JobPlan& plan);

// The number of ranks of the environment (WORLD_SIZE), else 1. Throws Error(bad_environment).
int64_t world_size_from_environment();

// Main weights that the engine's optimizer keeps beside what a strategy stores
// (optimizer.main_dtype), in a plan whose footprint, made from `cost`, does not know of them: their
// bytes, and those of state in their dtype; notices where main_dtype has no effect, and a warning
// where the optimizer would update weights of 16 bits. Throws Error(conflict) for a dtype that is
// narrower than the stored one, and as check_state() does.
void count_main_weights(JobPlan& plan, const config::Config& config, const ShardingRequest& cost);
// Throws Error(conflict) where the optimizer would keep squares of gradients in float16, in which
// most of them are zero: it would divide by next to nothing.
void check_state(const std::string& optimizer, DType weights);
// What to tell the user where an optimizer updates weights of such a dtype of 16 bits.
std::string narrow_update_warning(const std::string& optimizer, DType weights);

// What a plan may show and training may not do: throws Error(tp_plan_does_not_fit) for a plan that
// would compute something else than the model.
void check_runs(const JobPlan& plan, const Job& job);

}  // namespace meshwright::plan
