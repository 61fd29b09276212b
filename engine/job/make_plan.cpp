#include <algorithm>
#include <iterator>
#include <numeric>

#include "engine/config/cross_checks.h"
#include "engine/job/adapters.h"
#include "engine/job/before_start.h"
#include "engine/job/job.h"
#include "engine/job/parameter_groups.h"
#include "engine/job/plan.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/shared_schemas.h"

namespace meshwright::plan {
namespace {

// The strategy that owns the request: the one named, or the one it hands the job on to, once.
MeshPlan plan_mesh(Job& job, JobPlan& plan, StrategyConfig& config, const MeshRequest& request_in) {
  MeshRequest request = request_in;
  auto ask = [&] {
    MeshPlan mesh = plan.strategy.strategy->plan_mesh(request);
    plan.notices.insert(plan.notices.end(), mesh.notices.begin(), mesh.notices.end());
    return mesh;
  };
  MeshPlan mesh = ask();
  if (mesh.delegate_to.empty()) return mesh;
  std::string first = plan.strategy.info->name;
  plan.strategy = job.registry->find(mesh.delegate_to);
  config::StrategySchema schema{plan.strategy.info->name, plan.strategy.info->aliases,
                                plan.strategy.info->schema};
  config = job.config.strategy_config(schema);
  request.config = config;
  Diagnostics diagnostics;
  plan.strategy.strategy->validate(config, diagnostics);
  plan.notices.insert(plan.notices.end(), diagnostics.notices().begin(),
                      diagnostics.notices().end());
  plan.warnings.insert(plan.warnings.end(), diagnostics.warnings().begin(),
                       diagnostics.warnings().end());
  diagnostics.throw_if_any();
  mesh = ask();
  if (!mesh.delegate_to.empty())
    throw Error(ErrorCode::bad_delegation, first + " hands this job to " +
                                               plan.strategy.info->name +
                                               ", which hands it on to " + mesh.delegate_to)
        .key("distributed.strategy")
        .help("set distributed.strategy = \"" + mesh.delegate_to + "\"");
  return mesh;
}

// The largest divisor of `value` up to `most`, among a million candidates; else 1.
int64_t divisor_below(int64_t value, int64_t most) {
  int64_t highest = std::min(value, most);
  for (int64_t d = highest; d > 1 && highest - d < 1'000'000; --d)
    if (value % d == 0) return d;
  return 1;
}

// The step's shape; checked against dp only where the user gave batch sizes.
Workload read_workload(const config::Config& config, const MeshPlan& mesh,
                       const SharedOptions& shared, bool check_batch) {
  const int64_t pp = shared.sizes.pp;
  const PipelineOptions& pipeline = shared.pipeline;
  Workload work;
  const Options& steps = config.table("step_scheduler");
  work.local_batch = steps.get_int("local_batch_size");
  int64_t global = steps.get_int("global_batch_size");
  // A pipeline cuts a step's samples by sizes of its own, so the default need not divide them.
  if (pp > 1 && !steps.is_given("local_batch_size") && mesh.dp > 0 && global % mesh.dp == 0)
    work.local_batch = divisor_below(global / mesh.dp, work.local_batch);
  bool given = steps.is_given("global_batch_size") || steps.is_given("local_batch_size");
  int64_t per_micro_step = 0;
  if (__builtin_mul_overflow(work.local_batch, mesh.dp, &per_micro_step))
    per_micro_step = INT64_MAX;
  if (per_micro_step > 0 && global % per_micro_step == 0 && global >= per_micro_step) {
    work.accumulation = global / per_micro_step;
  } else if (check_batch && given && steps.is_given("global_batch_size")) {
    Error error(
        ErrorCode::batch_not_divisible,
        "global_batch_size " + std::to_string(global) + " is not a multiple of local_batch_size " +
            std::to_string(work.local_batch) + " * dp " + std::to_string(mesh.dp) + " = " +
            (per_micro_step == INT64_MAX ? "more than " : "") + std::to_string(per_micro_step));
    error.key("step_scheduler.global_batch_size").at(steps.origin("global_batch_size"));
    // What is named fits the pipeline's micro-batches, too.
    const int64_t micro = std::max<int64_t>(pipeline.microbatch_size, 1);
    int64_t unit = per_micro_step, up = 0;
    if (pp > 1 && per_micro_step < INT64_MAX &&
        __builtin_mul_overflow(per_micro_step, micro / std::gcd(micro, work.local_batch), &unit))
      unit = INT64_MAX;
    const int64_t down = global / unit * unit;
    if (down > 0) error.help("set step_scheduler.global_batch_size = " + std::to_string(down));
    if (unit < INT64_MAX && !__builtin_add_overflow(down, unit, &up))
      error.help("set step_scheduler.global_batch_size = " + std::to_string(up));
    if (global % mesh.dp == 0 && (pp == 1 || global / mesh.dp % micro == 0))
      error.help("set step_scheduler.local_batch_size = " +
                 std::to_string(divisor_below(global / mesh.dp, work.local_batch)));
    throw error;
  }
  if (const Options& data = config.table("dataset"); data.is_set("seq_len"))
    work.seq_len = data.get_int("seq_len");
  work.storage = config.table("model").find_dtype("torch_dtype").value_or(DType::float32);
  const Options& optimizer = config.table("optimizer");
  if (optimizer.get_string("name") == "sgd")
    work.optimizer_states = optimizer.get_number("momentum") > 0 ? 1 : 0;
  return work;
}

void check_expert_sizes(const ModelOutline& outline, const ParallelSizes& sizes,
                        const MeshPlan& mesh) {
  if (sizes.ep <= 1) return;
  if (!outline.moe)
    throw Error(ErrorCode::model_does_not_fit,
                outline.architecture +
                    " has no experts to divide, but ep_size = " + std::to_string(sizes.ep))
        .key("distributed.ep_size")
        .help("set distributed.ep_size = 1");
  if (outline.moe->experts % sizes.ep != 0) {
    Error error(ErrorCode::model_does_not_fit, std::to_string(outline.moe->experts) +
                                                   " experts do not divide by ep " +
                                                   std::to_string(sizes.ep));
    error.key("distributed.ep_size");
    int shown = 0;
    for (int64_t d = std::min(sizes.ep, outline.moe->experts); d >= 1 && shown < 3; --d)
      if (outline.moe->experts % d == 0 &&
          (mesh.moe_mesh && mesh.moe_mesh->size("ep_shard") * sizes.ep % d == 0)) {
        error.help("set distributed.ep_size = " + std::to_string(d));
        ++shown;
      }
    throw error;
  }
}

void plan_tensor_parallel(const StrategyConfig& config, JobPlan& plan) {
  const ParallelSizes& sizes = config.shared().sizes;
  if (config.shared().sequence_parallel && sizes.tp <= 1)
    plan.notices.push_back("sequence_parallel has no effect with tp_size = 1");
  TpPlanRequest tp{sizes.tp, config.shared().sequence_parallel, config.shared().tp_plan};
  plan.tp = plan.strategy.strategy->translate_tp_plan(*plan.outline, tp);
  plan.notices.insert(plan.notices.end(), plan.tp.notices.begin(), plan.tp.notices.end());
  plan.warnings.insert(plan.warnings.end(), plan.tp.warnings.begin(), plan.tp.warnings.end());
}

// How a step's samples go through the pipeline. What "auto" comes to is written into the options.
void plan_runs(bool check_batch, JobPlan& plan, StrategyConfig& config) {
  if (config.shared().sizes.pp <= 1) return;
  const std::string table = "distributed.pipeline.";
  PipelineOptions& options = config.shared().pipeline;
  const int64_t samples = step_samples(plan.workload),
                micro = std::max<int64_t>(options.microbatch_size, 1);
  const bool given = options.batch_size.has_value();
  const int64_t batch = options.batch_size.value_or(samples);
  plan.shared.pipeline.batch_size = options.batch_size = batch;
  const std::optional<int64_t> length = options.seq_len;
  if (length && plan.workload.seq_len > 0 && *length != plan.workload.seq_len)
    throw Error(ErrorCode::conflict, "pp_seq_len " + std::to_string(*length) +
                                         " is not the dataset's seq_len " +
                                         std::to_string(plan.workload.seq_len))
        .key(table + "pp_seq_len")
        .help("leave out " + table + "pp_seq_len");
  if (!check_batch) return;
  const std::string has = "a data-parallel rank has " + std::to_string(samples) +
                          " samples a step (" + "global_batch_size / dp), ";
  if (given && (samples < batch || samples % batch != 0)) {
    Error error(ErrorCode::batch_not_divisible,
                has + "no multiple of pp_batch_size " + std::to_string(batch));
    error.key(table + "pp_batch_size");
    error.help("leave out " + table + "pp_batch_size: all samples of a step then pass in one run");
    const int64_t fits = micro * divisor_below(samples / micro, std::min(batch, samples) / micro);
    if (samples % micro == 0)
      error.help("set " + table + "pp_batch_size = " + std::to_string(fits));
    throw error;
  }
  if (!given && (samples < micro || samples % micro != 0)) {
    Error error(ErrorCode::batch_not_divisible,
                has + "no multiple of pp_microbatch_size " + std::to_string(micro));
    error.key(table + "pp_microbatch_size");
    error.help("set " + table +
               "pp_microbatch_size = " + std::to_string(divisor_below(samples, micro)));
    // The next batch that is a multiple of local_batch_size, too.
    const int64_t local = std::max<int64_t>(plan.workload.local_batch, 1);
    int64_t next = 0;
    if (!__builtin_mul_overflow(micro / std::gcd(micro, local), local, &next) &&
        !__builtin_mul_overflow(next, samples / next + 1, &next) &&
        !__builtin_mul_overflow(next, std::max<int64_t>(plan.mesh.dp, 1), &next))
      error.help("set step_scheduler.global_batch_size = " + std::to_string(next));
    throw error;
  }
}

// Whether the ranks of some group of cp are on more hosts than one.
bool cp_spans_hosts(const Mesh& mesh, const PlanRequest& wanted) {
  const std::vector<int64_t>& hosts = wanted.hosts;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    if (!mesh.place_of(static_cast<int64_t>(rank))) continue;
    for (int64_t peer : mesh.group(static_cast<int64_t>(rank), "cp"))
      if (hosts[static_cast<size_t>(peer)] != hosts[rank]) return true;
  }
  const int64_t each = wanted.ranks_per_host;
  if (!hosts.empty() || each <= 0) return false;
  // The groups lie alike again behind as many ranks as are whole hosts and whole rounds of groups.
  const std::vector<int64_t> first = mesh.group(0, "cp");
  const int64_t length = first.back() - first.front(),
                stride = length / std::max<int64_t>(std::ssize(first) - 1, 1),
                round = length + stride;
  for (int64_t begin = 0; begin < std::min(wanted.world_size, std::lcm(round, each));
       begin += round)
    for (int64_t rank = begin; rank < begin + stride; ++rank)
      if (rank / each != (rank + length) / each) return true;
  return false;
}

// How the ranks of cp share out attention. What "auto" comes to is written into the options: cost,
// stages of a pipeline and run, which know less of the model or its lengths, follow it. `outline`:
// nullptr for a model that the job does not name.
void plan_attention(const PlanRequest& wanted, const ModelOutline* outline, JobPlan& plan,
                    StrategyConfig& config) {
  const ModelOutline unknown;
  std::optional<ContextPlan> context = plan_context(
      {outline ? *outline : unknown, plan.mesh, plan.tp, config, plan.workload, plan.rank});
  if (!context) return;
  const bool several = cp_spans_hosts(*plan.mesh.device_mesh, wanted);
  if (several) *context = across_hosts(*context);
  // A model that the job does not name stays "auto" on one host: its heads are known when it runs.
  if (!context->why.empty() && (outline || context->method == ContextMethod::ring))
    config.shared().context.method = plan.shared.context.method = context->method;
  const bool assumed = wanted.hosts.empty() && wanted.ranks_per_host <= 0 &&
                       context->method == ContextMethod::all_gather;
  if (!context->why.empty() && (outline || several))
    plan.notices.push_back("context parallelism by " + context_method_name(*context) + ": " +
                           context->why + (assumed ? "; over several hosts it is ring" : ""));
  if (outline) plan.context = std::move(context);
}

void warn_of_experts(const StrategyConfig& config, JobPlan& plan) {
  if (!plan.outline->moe) return;
  if (config.shared().activation_checkpointing != ActivationCheckpointing::none &&
      !config.shared().moe.ignore_router_for_ac)
    plan.warnings.push_back(
        "distributed.moe.ignore_router_for_ac = false: recomputed layers route their tokens anew; "
        "where two experts "
        "score alike, or rounding differs, gradients may come from other experts than the loss "
        "did");
  if (config.shared().moe.fake_balanced_gate)
    plan.warnings.push_back(
        "distributed.moe.fake_balanced_gate = true: tokens go to the experts in turns and routers "
        "get gradients of zero; for measuring "
        "speed only");
}

// The gradients of a weight that the first and the last rank of the pipeline have: added up once a
// step.
std::optional<Communication> tied_gradients(const JobPlan& plan, const ModelOutline& part) {
  const std::vector<PipelineStage>& stages = plan.pipeline->stages;
  const int64_t first = stages.front().rank, last = stages.back().rank,
                me = plan.mesh.device_mesh->coordinate(plan.rank, "pp");
  if (!plan.outline->tied_embeddings || first == last || (me != first && me != last)) return {};
  const std::string copy = [&] {
    const ModelOutline other = stage_outline(*plan.outline, *plan.pipeline, last);
    for (const ParameterOutline& p : other.parameters)
      if (!p.copy_of.empty()) return me == last ? p.name : p.copy_of;
    return std::string();
  }();
  const ParameterOutline* parameter = part.find_parameter(copy);
  if (parameter == nullptr || !parameter->trainable) return {};
  for (const ParameterPlacement& p : plan.footprint->parameters)
    if (p.name == copy)
      return Communication{.unit = copy,
                           .phase = Communication::Phase::reduction,
                           .axis = "pp",
                           .op = "all_reduce",
                           .ranks = 2,
                           .count = 1,
                           .payload = element_count(p.local_shape) * dtype_size(parameter->dtype)};
  return {};
}

// `part`: the outline of the rank's stages.
void add_pipeline_rows(const ShardingRequest& cost, const ModelOutline& part, JobPlan& plan) {
  if (!plan.pipeline) return;
  CommunicationSchedule& schedule = plan.footprint->schedule;
  std::ranges::copy(pipeline_schedule(cost, *plan.pipeline), std::back_inserter(schedule));
  if (std::optional<Communication> tied = tied_gradients(plan, part))
    schedule.push_back(std::move(*tied));
  plan.footprint->wire = wire_of(schedule);
}

MemoryFacts::Where where_of(const config::Config& config, const PlanRequest& wanted) {
  using Where = MemoryFacts::Where;
  if (wanted.where != Where::unknown) return wanted.where;
  const std::string device = config.table("dist_env").get_string("device");
  return device == "cpu" ? Where::host : device == "cuda" ? Where::device : Where::unknown;
}

// dist_env.cuda_graphs, and enable_compile of a strategy that has such an option.
void plan_layer_graphs(const Job& job, const ShardingRequest& cost, JobPlan& plan) {
  const Options& own = cost.config.own();
  const bool compiles =
      own.schema().find("enable_compile") != nullptr && own.get_bool("enable_compile");
  if (job.config.table("dist_env").get_bool("cuda_graphs"))
    plan.layer_graphs = LayerGraphsUse::required;
  else if (compiles)
    plan.layer_graphs = LayerGraphsUse::where_possible;
  else
    return;
  plan.parameters_move = why_parameters_move(cost, *plan.sharding, *plan.footprint);
  if (plan.layer_graphs == LayerGraphsUse::where_possible) {
    const std::string key = own.schema().table + ".enable_compile = true";
    const LayerGraphsRefusal no = why_no_layer_graphs(plan, job);
    const bool host = plan.memory.where == MemoryFacts::Where::host;
    if (host || !no.what.empty()) {
      plan.layer_graphs = LayerGraphsUse::off;
      plan.notices.push_back(key + " changes nothing here: " +
                             (host ? "on a CPU there are no CUDA graphs of layers to launch"
                                   : "CUDA graphs of layers cannot run, as " + no.what +
                                         "; to have them " + no.help +
                                         ", with dist_env.cuda_graphs = true") +
                             ". Fused kernels are always on, and nothing needs to be compiled");
      return;
    }
    plan.notices.push_back(key +
                           ": the work of each layer is launched as CUDA graphs, as with "
                           "dist_env.cuda_graphs = true");
  }
  plan.notices.emplace_back(
      "dist_env.cuda_graphs: what graphs keep of each layer between its launches, gradients of "
      "its weights among it, is not counted");
}

// dist_env.expandable_segments: LibTorch registers no memory with NCCL then.
void check_segments(const config::Config& config, const ShardingPlan& plan) {
  const Options& table = config.table("dist_env");
  if (!table.get_bool("expandable_segments") || table.get_string("device") == "cpu") return;
  const BufferPolicy& buffers = plan.sharding.buffers;
  if (plan.replicated || !buffers.registered) return;
  const std::string key = plan.sharding.options.of("buffers.registered");
  Error error(
      ErrorCode::conflict,
      "dist_env.expandable_segments = true cannot be beside " +
          (key.empty() ? "buffers that the strategy registers with NCCL" : key + " = true") +
          ": segments that grow are not registered with NCCL");
  error.key("dist_env.expandable_segments").help("set dist_env.expandable_segments = false");
  if (!key.empty()) error.about(key).help("set " + key + " = false");
  throw error;
}

std::shared_ptr<const ShardingPlan> plan_sharding(const JobPlan& plan,
                                                  const ShardingRequest& cost) {
  return std::make_shared<const ShardingPlan>(plan.strategy.strategy->plan_sharding(cost));
}

JobPlan lay_out(Job& job, const PlanRequest& wanted) {
  JobPlan plan;
  plan.requested_strategy = job.config.requested_strategy;
  plan.strategy = job.strategy;
  plan.world_size = wanted.world_size;
  plan.rank = wanted.rank;
  plan.shared = job.config.shared;
  check_rank_limits(job, wanted.world_size);
  if (wanted.rank < 0 || wanted.rank >= wanted.world_size)
    throw Error(ErrorCode::rank_out_of_range, "there is no rank " + std::to_string(wanted.rank) +
                                                  " in a world of " +
                                                  std::to_string(wanted.world_size))
        .help("--rank takes 0 to " + std::to_string(wanted.world_size - 1));

  StrategyConfig config = job.config.strategy_config(job.schemas.front());
  MeshRequest request;
  request.world_size = wanted.world_size;
  request.config = config;
  plan.mesh = plan_mesh(job, plan, config, request);
  plan.workload = read_workload(job.config, plan.mesh, config.shared(), !wanted.assumed_world);

  const bool whole_step = !config.shared().pipeline.batch_size;
  plan_runs(!wanted.assumed_world, plan, config);

  count_steps(job, wanted.assumed_world, plan);
  config.job().max_steps = plan.max_steps.value_or(0);
  warn_of_schedule(job, plan);

  if (const double targets = static_cast<double>(plan.workload.accumulation) *
                             static_cast<double>(plan.workload.local_batch) *
                             static_cast<double>(plan.workload.seq_len);
      targets > 0)
    if (const LossScale scale =
            loss_scale(job.config, config::float16_gradients(job.config), targets);
        scale.start > 1 || scale.dynamic)
      plan.notices.push_back(loss_scale_notice(scale));

  const std::optional<JobModel> model = model_of(job);
  if (!model) {
    plan.tp.source = "none";
    plan_attention(wanted, nullptr, plan, config);
    return plan;
  }
  plan.outline = model->outline(job.config);
  if (add_adapters(job.config, *plan.outline).any())
    plan.workload.storage = trained_dtype(*plan.outline, plan.workload.storage);
  plan.groups = group_parameters(job.config, *plan.outline, plan.warnings);
  const ModelOutline& outline = *plan.outline;
  const ParallelSizes& sizes = config.shared().sizes;
  check_expert_sizes(outline, sizes, plan.mesh);
  plan_tensor_parallel(config, plan);
  warn_of_experts(config, plan);
  choose_dispatcher(job, where_of(job.config, wanted), plan, config);
  plan_attention(wanted, &outline, plan, config);
  check_sequence(job, plan.tp);
  check_positions(job, outline, model->name(), plan);

  std::optional<ModelOutline> stages;
  if (sizes.pp > 1) {
    plan.pipeline = plan_pipeline(outline, sizes.pp, config.shared().pipeline,
                                  whole_step ? std::max<int64_t>(plan.mesh.dp, 1) : 0);
    plan.warnings.insert(plan.warnings.end(), plan.pipeline->warnings.begin(),
                         plan.pipeline->warnings.end());
    int64_t stage_rank = plan.mesh.device_mesh->coordinate(plan.rank, "pp");
    stages = stage_outline(outline, *plan.pipeline, stage_rank);
  }
  const ModelOutline& part = stages ? *stages : outline;
  ShardingRequest cost{part, plan.mesh, plan.tp, config, plan.workload, plan.rank};
  plan.sharding = plan_sharding(plan, cost);
  check_segments(job.config, *plan.sharding);
  plan.memory = {.where = where_of(job.config, wanted),
                 .drops = job.config.table("lora").get_number("dropout") > 0};
  plan.footprint = footprint_here(plan, cost, *plan.sharding);
  plan_layer_graphs(job, cost, plan);
  plan.notices.insert(plan.notices.end(), plan.footprint->notices.begin(),
                      plan.footprint->notices.end());
  plan.context_costs = context_costs(cost);
  tell_idle_moe(job, cost, config, plan);
  count_main_weights(plan, job.config, cost);
  if (wanted.compares_sequence) plan.other_activations = other_activations(plan, config, part);
  add_pipeline_rows(cost, part, plan);
  return plan;
}

}  // namespace

Footprint footprint_here(const JobPlan& plan, const ShardingRequest& cost,
                         const ShardingPlan& sharding) {
  Footprint out = footprint_of(cost, sharding);
  if (plan.memory.where != MemoryFacts::Where::unknown || plan.memory.drops)
    count_run_memory(cost, sharding, plan.memory, out.bytes);
  return out;
}

StrategyConfig config_of_plan(const Job& job, const JobPlan& plan) {
  const loader::StrategyInfo& info = *plan.strategy.info;
  StrategyConfig out = job.config.strategy_config({info.name, info.aliases, info.schema});
  out.shared() = plan.shared;
  out.job().max_steps = plan.max_steps.value_or(0);
  return out;
}

JobPlan plan_of_rank(const Job& job, const JobPlan& plan, int64_t rank) {
  JobPlan out = plan;
  out.rank = rank;
  const StrategyConfig config = config_of_plan(job, out);
  const ModelOutline part = outline_of_rank(out);
  const ShardingRequest cost{part, out.mesh, out.tp, config, out.workload, rank};
  out.sharding = plan_sharding(out, cost);
  out.footprint = footprint_here(out, cost, *out.sharding);
  count_main_weights(out, job.config, cost);
  add_pipeline_rows(cost, part, out);
  return out;
}

JobPlan make_plan(Job& job, const PlanRequest& wanted) {
  try {
    return lay_out(job, wanted);
  } catch (const Error& error) {  // rules of the SDK and of plugins name keys; where a key was
                                  // written is known here
    throw config::placed(error, job.config);
  }
}

std::vector<AxisView> axes_of(const JobPlan& plan) {
  std::vector<AxisView> out;
  auto add = [&](const Mesh& mesh, const std::string& name, bool flattened, bool expert) {
    if (!mesh.place_of(plan.rank)) return;
    out.push_back({name, mesh.size(name), mesh.coordinate(plan.rank, name), flattened, expert,
                   mesh.group(plan.rank, name)});
  };
  if (!plan.mesh.device_mesh) {
    AxisView dp{"dp", plan.world_size, plan.rank, false, false, {}};
    for (int64_t r = 0; r < plan.world_size; ++r) dp.group.push_back(r);
    out.push_back(std::move(dp));
    return out;
  }
  const Mesh& mesh = *plan.mesh.device_mesh;
  for (const MeshAxis& axis : mesh.axes()) add(mesh, axis.name, false, false);
  for (const FlattenedAxis& axis : mesh.flattened()) add(mesh, axis.name, true, false);
  if (plan.mesh.moe_mesh)
    for (const MeshAxis& axis : plan.mesh.moe_mesh->axes())
      if (!mesh.has_axis(axis.name)) add(*plan.mesh.moe_mesh, axis.name, false, true);
  return out;
}

}  // namespace meshwright::plan
