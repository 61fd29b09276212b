#include "apps/performance/forecast/forecast.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "apps/performance/steptime/kernels.h"
#include "apps/performance/steptime/machine.h"
#include "sdk/base/host_facts.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/shared_schemas.h"

namespace meshwright::forecast {

namespace {

bool is_data_axis(std::string_view axis) { return axis.starts_with("dp") || axis == "ep_shard"; }
bool gathers(const Communication& row) { return row.op == "all_gather" || row.op == "broadcast"; }
bool shares(const Communication& row) { return gathers(row) || row.op == "reduce_scatter"; }

// `group`: how the ranks of the axis lie.
double row_seconds(const steptime::Machine& machine, const Communication& row,
                   steptime::Group group) {
  if (row.ranks <= 1 || row.count <= 0) return 0;
  group.size = static_cast<double>(row.ranks);
  const auto count = static_cast<double>(row.count);
  if (row.op == "all_reduce")
    return count * steptime::all_reduce(machine, group, static_cast<double>(row.payload));
  const steptime::Ring ring = steptime::ring_of(machine, group);
  const double steps = row.op == "send" ? 1 : group.size - 1;
  return count * (steps * ring.step + static_cast<double>(row.sent()) / ring.rate);
}

}  // namespace

double shard_ranks(const CommunicationSchedule& schedule) {
  int64_t out = 1;
  for (const Communication& row : schedule)
    if (is_data_axis(row.axis) && shares(row)) out = std::max(out, row.ranks);
  return static_cast<double>(out);
}

DataMoved data_moved(const CommunicationSchedule& schedule, double data_ranks) {
  const double sharing = shard_ranks(schedule), copies = data_ranks / sharing;
  DataMoved out;
  double gathered = 0, reduced = 0;  // each byte once
  for (const Communication& row : schedule) {
    if (!is_data_axis(row.axis) || row.ranks <= 1) continue;
    if (row.every > 1) continue;  // set_exchange_seconds()
    const auto once = static_cast<double>(row.payload), all = static_cast<double>(row.count) * once;
    if (gathers(row)) {
      const bool again = row.phase == Communication::Phase::backward;
      out.fetched_ahead = out.fetched_ahead || row.overlaps;
      (again ? out.gathered_again : out.gathered) += all;
      if (!again) gathered += once;
      continue;
    }
    out.hidden = out.hidden || row.overlaps;
    if (row.op == "all_reduce" && static_cast<double>(row.ranks) <= copies) {
      out.summed += all;
      if (sharing > 1) continue;  // after what is scattered
    } else {
      out.reduced += row.op == "all_reduce" ? 2 * all : all;  // among those that share: both ways
    }
    out.reductions += all;
    reduced += once;
  }
  out.gathers = gathered > 0 ? out.gathered / gathered : 0;
  out.reductions = reduced > 0 ? out.reductions / reduced : 0;
  return out;
}

DataMoved data_moved(const plan::JobPlan& plan) {
  const ParallelSizes& sizes = plan.shared.sizes;
  return data_moved(plan.footprint->schedule, static_cast<double>(plan.world_size) /
                                                  static_cast<double>(sizes.tp * sizes.pp));
}

double seconds_of_rows(const steptime::Machine& machine, const CommunicationSchedule& schedule,
                       std::string_view axis, const steptime::Group& group) {
  double out = 0;
  for (const Communication& row : schedule)
    if (row.axis == axis) out += row_seconds(machine, row, group);
  return out;
}

double expert_seconds(const steptime::Machine& machine, const CommunicationSchedule& schedule,
                      const steptime::Shape& shape, const steptime::Job& job) {
  const steptime::Group group{job.ep, 1, job.ranks_per_host, job.ranks};
  double dispatches = 0;
  for (const Communication& row : schedule)
    if (row.axis == "ep" && row.op == "all_to_all") dispatches += static_cast<double>(row.count);
  if (dispatches <= 0) return seconds_of_rows(machine, schedule, "ep", group);
  return dispatches * steptime::dispatch(machine, group, job.tokens(), shape.experts_a_token,
                                         job.width * shape.hidden);
}

double context_seconds(const steptime::Machine& machine, const CommunicationSchedule& schedule,
                       const steptime::Shape& shape, const steptime::Job& job) {
  const steptime::Group group{job.cp, job.tp, job.ranks_per_host, job.ranks};
  const bool ring = job.context == steptime::ContextWay::ring;
  // Keys and values go round in each forward and once more in backward, where their gradients come
  // along.
  double bare = 0, forward = 0, backward = 0;
  for (const Communication& row : schedule) {
    if (row.axis != "cp") continue;
    const bool sent = ring && row.op == "send", back = row.phase == Communication::Phase::backward;
    (!sent ? bare : back ? backward : forward) += row_seconds(machine, row, group);
  }
  const double forwards = job.recompute == steptime::Recompute::full ? 2 : 1,
               times = job.micro_batches * job.runs * shape.layers / job.pp;
  const steptime::Core core =
      steptime::attention_core(machine, job, shape.heads / job.tp, shape.head_dim);
  const double once = forwards * times;
  return bare + once * steptime::exposed_ring(machine, forward / once, core.forward) +
         times * steptime::exposed_ring(machine, backward / times, core.backward);
}

void set_exchange_seconds(const steptime::Machine& machine, const steptime::Shape& shape,
                          const CommunicationSchedule& schedule, steptime::Job& job) {
  const double passes = job.micro_batches * job.runs * shape.layers / job.pp;
  const steptime::Group tp{job.tp, 1, job.ranks_per_host, job.ranks},
      replicas{job.replicas(), job.tp * job.shard, job.ranks_per_host, job.ranks};
  const double left = job.async_tp == steptime::AsyncTp::torch ? machine.overlap.async_tp : 1;
  if (job.tp > 1) job.tp_seconds = left * seconds_of_rows(machine, schedule, "tp", tp) / passes;
  if (job.cp > 1) job.cp_seconds = context_seconds(machine, schedule, shape, job) / passes;
  if (job.ep > 1) job.ep_seconds = expert_seconds(machine, schedule, shape, job) / passes;
  double seldom = 0;  // bytes a step of what not every step has
  for (const Communication& row : schedule)
    if (row.every > 1 && row.ranks > 1 && is_data_axis(row.axis))
      seldom += static_cast<double>(row.count) * static_cast<double>(row.payload) /
                static_cast<double>(row.every);
  job.beside_seconds = steptime::all_reduce(machine, replicas, seldom);
}

namespace {

using steptime::Job;
using steptime::Machine;
using steptime::Shape;
using steptime::When;

const MixedPrecision& precision_of(const ShardingPlan& plan) {
  return plan.replicated ? plan.replication.mp : plan.sharding.precision.mp;
}

// What a step's schedule moves, shared out between layers and what lies around them as their
// parameters are.
void set_data_traffic(const plan::JobPlan& plan, const Shape& shape, Job& job) {
  const DataMoved moved = data_moved(plan);
  const double stages = job.pp, layers = shape.layers / stages;
  const double layer = shape.layer_parameters(),
               root = shape.root_parameters() / (job.pp > 1 && !shape.tied ? 2 : 1);
  const double layer_share = layer / (layers * layer + root),
               root_share = root / (layers * layer + root);
  const double passes = job.micro_batches * job.runs;
  steptime::DataTraffic& data = job.data;
  data.hidden = moved.hidden;
  data.ahead = moved.fetched_ahead ? 1 : 0;
  // Rows that go nearly as often as there are passes are of units that each pass moves.
  auto each = [&](double often) { return often > 0.75 * passes; };
  if (moved.gathered > 0) {
    const bool again = moved.gathered_again > 0, forward = each(moved.gathers);
    data.gather_forward = forward && (again || passes > 1) ? When::each : When::once;
    const double times = forward ? passes : 1;
    data.layer_gathered = moved.gathered / times * layer_share;
    data.root_gathered = moved.gathered / times * root_share;
    const double passed = job.pp > 1 ? layers : layers - shape.frozen.layers;
    if (passed > 0) data.layer_gathered_again = moved.gathered_again / passes / passed;
  }
  if (moved.reduced > 0 || moved.summed > 0) {
    data.reduce = each(moved.reductions) && passes > 1 ? When::each : When::once;
    const double times = data.reduce == When::each ? passes : 1;
    data.layer_reduced = moved.reduced / times * layer_share;
    data.root_reduced = moved.reduced / times * root_share;
    data.layer_summed = moved.summed / times * layer_share;
    data.root_summed = moved.summed / times * root_share;
  }
  const ShardingPlan& sharding = *plan.sharding;
  if (sharding.replicated || sharding.sharding.layout != ShardLayout::rows) return;
  const auto reduced = static_cast<double>(dtype_size(precision_of(sharding).reduce));
  data.copied_out = 2 * job.width * (layer / job.tp);
  data.copied_in = (job.width + reduced) * (layer / job.tp);
}

void set_sizes(const plan::JobPlan& plan, Job& job) {
  const ParallelSizes& sizes = plan.shared.sizes;
  job.ranks = static_cast<double>(plan.world_size);
  job.tp = static_cast<double>(sizes.tp);
  job.cp = static_cast<double>(sizes.cp);
  job.pp = static_cast<double>(sizes.pp);
  job.ep = static_cast<double>(sizes.ep);
  job.shard = shard_ranks(plan.footprint->schedule);
  job.length = static_cast<double>(plan.workload.seq_len);
  job.micro_batch = static_cast<double>(plan.workload.local_batch);
  job.micro_batches = static_cast<double>(plan.workload.accumulation);
  if (!plan.pipeline) return;
  const PipelineOptions& options = plan.shared.pipeline;
  job.stages = static_cast<double>(plan.pipeline->stages.size()) / job.pp;
  job.schedule = plan.pipeline->schedule;
  job.micro_batch = static_cast<double>(std::max<int64_t>(1, options.microbatch_size));
  job.micro_batches = static_cast<double>(std::max<int64_t>(1, pipeline_micro_batches(options)));
  job.runs = static_cast<double>(std::max<int64_t>(1, pipeline_runs(options, plan.workload)));
}

// Copies of an offloaded job over the host's link: each rank's part of what is gathered, and its
// gradients once they are reduced.
void set_offload(const plan::JobPlan& plan, Job& job) {
  const ShardingPolicy& policy = plan.sharding->sharding;
  job.offload.on = true;
  job.offload.pinned = policy.offload.pin_memory;
  const double passes = job.micro_batches * job.runs, kept = job.pp > 1 ? job.runs : passes;
  for (const UnitCost& unit : plan.footprint->units) {
    const double times = unit.once_a_step ? 1 : unit.reshards ? 2 * passes : kept;
    job.offload.copied += times * static_cast<double>(unit.padded_bytes) / job.shard;
  }
  job.offload.copied += (policy.reduction.every_micro_batch ? passes : 1) *
                        static_cast<double>(plan.footprint->bytes.gradients);
}

void finish(Forecast& out) {
  const Job& job = out.job;
  out.usable = out.machine.memory - out.machine.outside;
  const double peak = peak_of(out.machine, job.width, job.tf32);
  out.tokens_a_second = job.tokens_a_step() / job.ranks / out.time.seconds;
  out.mfu = out.tokens_a_second * out.shape.flop_a_token(job.length) / peak;
  for (const auto& [name, seconds] : parts_of(out.time.parts))
    if (seconds / out.time.seconds > out.bound_share) {
      out.bound = name;
      out.bound_share = seconds / out.time.seconds;
    }
  out.rough = rough_of(out);
}

// What a rank's stages, rows and bytes come to.
Job job_of_rank(const plan::Job& job, const plan::JobPlan& plan, const Machine& machine,
                const Shape& shape) {
  Job out;
  set_sizes(plan, out);
  out.ranks_per_host = std::min(machine.network.ranks_per_host, out.ranks);
  out.width = compute_width(plan);
  out.tf32 = asks_for_tf32(job);
  out.fp8 = multiplies_in_float8(job, machine);
  out.engine_casts = true;
  if (plan.context && plan.context->method == ContextMethod::ring)
    out.context = steptime::ContextWay::ring;
  out.sequence_parallel = cuts_sequence(plan.tp);
  switch (plan.shared.activation_checkpointing) {
    case ActivationCheckpointing::none:
      break;
    case ActivationCheckpointing::full:
      out.recompute = steptime::Recompute::full;
      break;
    case ActivationCheckpointing::selective:
      out.recompute = steptime::Recompute::selective;
      break;
  }
  // The engine's own norm, rotary and SwiGLU kernels, and its loss without copies.
  out.fusion = steptime::Fusion::fused;
  out.loss = steptime::Loss::fused;
  out.optimizer_bytes =
      steptime::optimizer_bytes_of(static_cast<double>(plan.workload.optimizer_states));
  // It cuts the exchanges of sequence parallelism into pieces, and no others.
  if (plan.shared.enable_async_tensor_parallel && out.sequence_parallel)
    out.async_tp = steptime::AsyncTp::torch;
  set_data_traffic(plan, shape, out);
  set_exchange_seconds(machine, shape, plan.footprint->schedule, out);
  // Where the ranks compute on the host, all there is lies there anyhow.
  const ShardingPlan& shards = *plan.sharding;
  if (!shards.replicated && shards.sharding.offload.cpu && !machine.overlap.adds &&
      plan.memory.where != MemoryFacts::Where::host)
    set_offload(plan, out);
  return out;
}

// One rank for each place in a pipeline: those of a place do the same work. And the one asked
// about, whose rows of a matrix may be fewer.
std::vector<int64_t> ranks_to_judge(const plan::JobPlan& plan) {
  const std::optional<Mesh>& mesh = plan.mesh.device_mesh;
  const int64_t first = mesh ? mesh->rank_at(0) : 0;
  std::vector<int64_t> out = {first};
  if (plan.pipeline) out = mesh->group(first, "pp");
  if (std::ranges::find(out, plan.rank) == out.end()) out.push_back(plan.rank);
  return out;
}

Place place_of(const plan::JobPlan& plan) {
  Place out{plan.rank, std::nullopt};
  if (plan.pipeline) out.stage_rank = plan.mesh.device_mesh->coordinate(plan.rank, "pp");
  return out;
}

// Seconds of a micro-batch in the rank's own stages; 0: the job has none.
double work_of(const plan::JobPlan& plan, const Forecast& f, const Job& job) {
  if (!plan.pipeline) return 0;
  const steptime::LayerTime layer = steptime::layer_time(f.machine, f.shape, job);
  const steptime::EndTime ends = steptime::end_time(f.machine, f.shape, job);
  double out = 0;
  for (const PipelineStage& stage : plan.pipeline->stages) {
    if (stage.rank != plan.mesh.device_mesh->coordinate(plan.rank, "pp")) continue;
    const auto layers = static_cast<double>(stage.layer_count);
    const double frozen =
        std::clamp(f.shape.frozen.layers - static_cast<double>(stage.first_layer), 0.0, layers);
    out += layers * layer.forward.sum() + (layers - frozen) * layer.backward.sum();
    if (stage.index == 0) out += ends.embedding_forward.sum() + ends.embedding_backward.sum();
    if (stage.index + 1 == static_cast<int64_t>(plan.pipeline->stages.size()))
      out += ends.head_forward.sum() + ends.head_backward.sum();
  }
  return out;
}

// Of the ranks that are gone through, keeps the longest step that the rows of one of them make,
// whose stages take longest, for `longest` seconds, and who needs most memory.
void judge(const plan::Job& job, const plan::JobPlan& plan, double& longest, Forecast& out) {
  const Job sizes = job_of_rank(job, plan, out.machine, out.shape);
  const steptime::Prediction time = steptime::predict(out.machine, out.shape, sizes);
  if (!out.slowest || time.seconds > out.time.seconds) {
    out.job = sizes;
    out.time = time;
    out.schedule = plan.footprint->schedule;
  }
  if (const double work = work_of(plan, out, sizes); !out.slowest || work > longest) {
    out.slowest = place_of(plan);
    longest = work;
  }
  const Bytes& b = plan.footprint->bytes;
  const auto states = static_cast<double>(b.weights + b.gradients + b.optimizer),
             rest = static_cast<double>(b.transient + b.activations);
  const double memory = rest + (sizes.offload.on ? 0 : states);
  if (out.fullest && memory <= out.memory) return;
  out.fullest = place_of(plan);
  out.memory = memory;
  out.bytes = b;
  if (sizes.offload.on) out.bytes->weights = out.bytes->gradients = out.bytes->optimizer = 0;
  out.host_memory = sizes.offload.on ? states : 0;
}

}  // namespace

std::string machines_folder() {
  namespace fs = std::filesystem;
  std::error_code failed;
  const fs::path program = program_path().parent_path();
  const fs::path installed = program / "../share/meshwright/configs/machines";
  return fs::is_directory(installed, failed) ? installed.lexically_normal().string()
                                             : std::string(MESHWRIGHT_MACHINES_SOURCE);
}

double compute_width(const plan::JobPlan& plan) {
  const DType dtype = plan.shared.autocast_dtype.value_or(precision_of(*plan.sharding).param);
  return static_cast<double>(dtype_size(dtype));
}

bool asks_for_tf32(const plan::Job& job) {
  return job.config.table("run").get_string("float32_matmul_precision") == "high";
}

bool asks_for_float8(const plan::Job& job) {
  return job.config.table("model").get_bool("float8_linear");
}

bool multiplies_in_float8(const plan::Job& job, const Machine& machine) {
  if (!asks_for_float8(job) || machine.overlap.adds) return false;
  if (machine.peak_fp8 > 0 && machine.rate.product_fp8 > 0) return true;
  const std::string key = machine.peak_fp8 > 0 ? "rate.product_fp8" : "peak.fp8";
  throw Error(ErrorCode::missing_key,
              "model.float8_linear wants products of 8-bit floats, and the machine file of " +
                  machine.name + " has no " + key +
                  (machine.peak_fp8 > 0 ? "" : ": train refuses a device without them"))
      .key(key)
      .about("model.float8_linear")
      .help("set model.float8_linear = false")
      .help(
          "where the device has them (capability 8.9 or above), give peak.fp8 and "
          "rate.product_fp8 in a machine file of your own");
}

double peak_of(const Machine& machine, double width, bool tf32) {
  return width > 2 ? machine.peak_of_float32(tf32) : machine.peak_bf16;
}

Forecast forecast(const plan::Job& job, const plan::JobPlan& plan, const Machine& machine) {
  if (!plan.outline || !plan.footprint)
    throw Error(ErrorCode::missing_key, "a prediction needs a model, and the file has none")
        .key("model.config")
        .help("set model.config to a config.json");
  if (plan.workload.seq_len <= 0)
    throw Error(ErrorCode::missing_key, "a prediction needs the length of a sample")
        .key("dataset.seq_len")
        .help("set dataset.seq_len = 4096");
  Forecast out;
  out.machine = machine;
  out.shape = shape_of(*plan.outline);
  double longest = 0;
  for (const int64_t rank : ranks_to_judge(plan))
    if (rank == plan.rank)
      judge(job, plan, longest, out);
    else
      judge(job, plan::plan_of_rank(job, plan, rank), longest, out);
  finish(out);
  if (asks_for_float8(job) && !out.job.fp8)
    out.rough.emplace_back("8-bit floats on a processor: products of float32, without their casts");
  return out;
}

steptime::Prediction predicted_on(const Machine& machine, const Forecast& forecast,
                                  steptime::Bubble bubble) {
  Job job = forecast.job;
  if (forecast.schedule) set_exchange_seconds(machine, forecast.shape, *forecast.schedule, job);
  return steptime::predict(machine, forecast.shape, job, bubble);
}

// Why a forecast is rougher than docs/step_time.md promises.

namespace {

// A figure that is off by so much changes what is made of it, whatever else bounds the step.
constexpr double kFarOff = 1000;

// Those of the machine's figures that the forecast goes by, with commas: with another value of them
// it is another one.
std::string in_use(const Forecast& f, const std::vector<std::string>& keys) {
  std::string out;
  if (keys.empty()) return out;
  steptime::Machine machine = f.machine;
  const std::vector<steptime::Figure> figures = steptime::figures_of(machine);
  auto seconds = [&] {
    return predicted_on(machine, f, steptime::Bubble::closed_form).seconds;  // has every figure
  };
  const double before = seconds();
  for (const std::string& key : keys) {
    const auto figure = std::ranges::find_if(
        figures, [&](const steptime::Figure& candidate) { return candidate.key() == key; });
    if (figure == figures.end()) continue;
    const double was = *figure->to;
    auto changes = [&](double value) {
      *figure->to = value;
      const bool changed = seconds() != before;
      *figure->to = was;
      return changed;
    };
    // What a job may have of the memory, and how many ranks a host has, are in no second.
    const bool always = key == "device.memory" || key == "device.outside" ||
                        (key == "network.ranks_per_host" && f.job.ranks > 1);
    if (always || changes(was > 0 ? was / kFarOff : figure->most) || changes(was * kFarOff))
      out += (out.empty() ? "" : ", ") + key;
  }
  return out;
}

}  // namespace

std::vector<std::string> rough_of(const Forecast& f) {
  std::vector<std::string> out;
  const steptime::LayerTime layer = steptime::layer_time(f.machine, f.shape, f.job);
  if (f.shape.experts > 0) out.emplace_back("experts: within a fifth");
  if (f.job.cp > 4) out.emplace_back("cp over 4: within 12%");
  if (f.job.fp8)
    out.emplace_back(
        "8-bit floats: the bytes of their casts are counted, no run has measured them");
  if (f.job.offload.on)
    out.emplace_back("states on the host: the rates of its link and memory are guessed");
  const double device =
      layer.forward.sum() + layer.backward.sum() - layer.forward.host - layer.backward.host;
  if (device < 1.5e-3 && f.machine.peak_bf16 > 1e13)
    out.emplace_back("layers under 1.5 ms: the host decides, measure it");
  if (const std::string names = in_use(f, f.machine.guessed); !names.empty())
    out.push_back("guessed figures of the machine: " + names);
  if (const std::string names = in_use(f, f.machine.at_bound); !names.empty())
    out.push_back("figures of the machine that were left at a bound: " + names);
  return out;
}

}  // namespace meshwright::forecast
