#include "engine/forecast/forecast.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <string_view>

#include "engine/steptime/network.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/pipeline_actions.h"

namespace meshwright::forecast {
namespace {

using steptime::Group;
using steptime::Job;
using steptime::Machine;
using steptime::Shape;
using steptime::When;

// The exchanges of one step that one kind of parallelism makes.
struct Moved {
  double gathered = 0, reduced = 0, summed = 0;  // payloads, whole
  double seldom = 0;                             // of all-reduces that not every step has, a step
  double seconds = 0;
};

bool is_data_axis(std::string_view axis) { return axis.starts_with("dp") || axis == "ep_shard"; }

// Payloads from the bytes that one rank sends.
double whole(double sent, double ranks) { return ranks > 1 ? sent * ranks / (ranks - 1) : 0; }

double ranks_of(const plan::JobPlan& plan, const std::string& axis) {
  for (const plan::AxisView& view : plan::axes_of(plan))
    if (view.name == axis) return static_cast<double>(view.size);
  return static_cast<double>(plan.world_size);
}

// The plan's rows of tp, cp or ep, in seconds.
double exposed_seconds(const Machine& machine, const plan::JobPlan& plan, const std::string& axis,
                       const Group& group) {
  double out = 0;
  if (group.size <= 1) return 0;
  const steptime::Ring ring = steptime::ring_of(machine, group);
  for (const WireRow& row : plan.footprint->wire) {
    if (row.axis != axis) continue;
    const double calls = row.op == "all_reduce" ? 2.0 * static_cast<double>(row.count)
                                                : static_cast<double>(row.count);
    out += calls * (group.size - 1) * ring.step + static_cast<double>(row.bytes) / ring.rate;
  }
  return out;
}

Moved data_moved(const plan::JobPlan& plan) {
  Moved out;
  for (const WireRow& row : plan.footprint->wire) {
    if (!is_data_axis(row.axis)) continue;
    const double ranks = ranks_of(plan, row.axis);
    const double payload = whole(static_cast<double>(row.bytes), ranks);
    if (row.every > 1)
      out.seldom += payload / 2 / static_cast<double>(row.every);
    else if (row.op == "all_gather" || row.op == "broadcast")
      out.gathered += payload;
    else if (row.op == "reduce_scatter")
      out.reduced += payload;
    else if (row.op == "all_reduce")
      out.summed += payload / 2;
  }
  return out;
}

// What the strategy's plan says beyond its bytes.
struct Ways {
  bool rows = true, hidden = true, whole_layers = true;
  double width = 2, reduced = 4;
  bool every_micro_batch = false;
};

Ways ways_of(const plan::Job& job, const plan::JobPlan& plan) {
  config::StrategySchema schema{plan.strategy.info->name, plan.strategy.info->aliases,
                                plan.strategy.info->schema};
  StrategyConfig config = job.config.strategy_config(schema);
  config.shared = plan.shared;
  const ModelOutline part = plan.pipeline
                                ? stage_outline(*plan.outline, *plan.pipeline,
                                                plan.mesh.device_mesh->coordinate(plan.rank, "pp"))
                                : *plan.outline;
  const ShardingPlan said = plan.strategy.strategy->plan_sharding(
      {part, plan.mesh, plan.tp, config, plan.workload, plan.rank});
  const MixedPrecision& mp = said.replicated ? said.replication.mp : said.sharding.precision.mp;
  Ways out;
  out.rows = !said.replicated && said.sharding.layout == ShardLayout::rows;
  out.hidden = said.replicated || (said.sharding.reduction.overlap && said.sharding.overlap_gather);
  out.whole_layers = said.recompute_whole_layers;
  out.width = static_cast<double>(dtype_size(config.shared.autocast_dtype.value_or(mp.param)));
  out.reduced = static_cast<double>(dtype_size(mp.reduce));
  out.every_micro_batch = reduces_each(said);
  return out;
}

void set_data_traffic(const plan::JobPlan& plan, const Shape& shape, const Ways& ways, Job& job) {
  const Moved moved = data_moved(plan);
  const double stages = job.pp, layers = shape.layers / stages;
  const double layer = shape.layer_parameters(),
               root = shape.root_parameters() / (job.pp > 1 && !shape.tied ? 2 : 1);
  const double layer_share = layer / (layers * layer + root),
               root_share = root / (layers * layer + root);
  double units = 0;
  for (const UnitCost& unit : plan.footprint->units)
    units += static_cast<double>(unit.padded_bytes);
  const double passes = job.micro_batches * job.runs;
  steptime::DataTraffic& data = job.data;
  data.hidden = ways.hidden;
  if (moved.gathered > 0 && units > 0) {
    // How often a step gathers all there is tells when: in both ways of each pass, in one, or once.
    const double often = moved.gathered / units;
    double times = 1;
    data.gather_forward = When::once;
    if (often > 1.5 * passes) {
      data.gather_forward = data.gather_backward = When::each;
      times = 2 * passes;
    } else if (often > 0.75 * passes && passes > 1) {
      data.gather_forward = When::each;
      times = passes;
    }
    data.layer_gathered = moved.gathered / times * layer_share;
    data.root_gathered = moved.gathered / times * root_share;
  }
  if (moved.reduced > 0 || moved.summed > 0) {
    data.reduce = ways.every_micro_batch && passes > 1 ? When::each : When::once;
    const double times = data.reduce == When::each ? passes : 1;
    data.layer_reduced = moved.reduced / times * layer_share;
    data.root_reduced = moved.reduced / times * root_share;
    data.layer_summed = moved.summed / times * layer_share;
    data.root_summed = moved.summed / times * root_share;
  }
  if (ways.rows) {
    const double elements = layer / job.tp;
    data.copied_out = 2 * ways.width * elements;
    data.copied_in = (ways.width + ways.reduced) * elements;
  }
}

void set_sizes(const plan::JobPlan& plan, Job& job) {
  const ParallelSizes& sizes = plan.shared.sizes;
  job.ranks = static_cast<double>(plan.world_size);
  job.tp = static_cast<double>(sizes.tp);
  job.cp = static_cast<double>(sizes.cp);
  job.pp = static_cast<double>(sizes.pp);
  job.ep = static_cast<double>(sizes.ep);
  double shard = 1;
  for (const std::string& axis : plan.mesh.fsdp_axes)
    if (axis != "dp_replicate") shard *= ranks_of(plan, axis);
  if (shard == 1)  // a strategy without named axes shares over what it gathers over
    for (const WireRow& row : plan.footprint->wire)
      if (is_data_axis(row.axis) && (row.op == "all_gather" || row.op == "reduce_scatter"))
        shard = std::max(shard, ranks_of(plan, row.axis));
  job.shard = shard;
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

void say_rough(Forecast& out) {
  const steptime::LayerTime layer = steptime::layer_time(out.machine, out.shape, out.job);
  if (out.shape.experts > 0) out.rough.push_back("experts: within a fifth");
  if (out.job.cp > 4) out.rough.push_back("cp over 4: within 12%");
  const double device =
      layer.forward.sum() + layer.backward.sum() - layer.forward.host - layer.backward.host;
  if (device < 1.5e-3 && out.machine.peak_bf16 > 1e13)
    out.rough.push_back("layers under 1.5 ms: the host decides, measure it");
  if (!out.machine.guessed.empty()) {
    std::string names;
    for (size_t i = 0; i < out.machine.guessed.size(); ++i)
      names += (i > 0 ? ", " : "") + out.machine.guessed[i];
    out.rough.push_back("guessed figures of the machine: " + names);
  }
}

void finish(Forecast& out) {
  const Job& job = out.job;
  out.usable = out.machine.memory - out.machine.outside;
  const double peak = peak_of(out.machine, job.width);
  out.tokens_a_second = job.tokens_a_step() / job.ranks / out.time.seconds;
  out.mfu = out.tokens_a_second * out.shape.flop_a_token(job.length) / peak;
  for (const auto& [name, seconds] : parts_of(out.time.parts))
    if (seconds / out.time.seconds > out.bound_share) {
      out.bound = name;
      out.bound_share = seconds / out.time.seconds;
    }
  say_rough(out);
}

// The weight that makes the logits; nullptr: none is known.
const ParameterOutline* head_of(const ModelOutline& outline) {
  if (!outline.tied_embeddings) return outline.find_parameter("lm_head.weight");
  for (const ParameterOutline& p : outline.parameters)
    if (const ModuleOutline* module = outline.find_module(p.name.substr(0, p.name.rfind('.')));
        module != nullptr && module->kind == ModuleKind::embedding)
      return &p;
  return nullptr;
}

// Parameters come in the order of the forward: layers before anything that trains have no backward.
steptime::Frozen frozen_of(const ModelOutline& outline) {
  struct Layer {
    bool backward = true;
    double products = 0, frozen = 0;  // elements that a token meets
  };
  std::vector<Layer> layers(static_cast<size_t>(outline.layers));
  const ParameterOutline* head = head_of(outline);
  double all = 0, frozen = 0;
  bool reached = false, before_head = false;
  for (const ParameterOutline& p : outline.parameters) {
    const auto elements = static_cast<double>(element_count(p.shape));
    all += elements;
    frozen += p.trainable ? 0 : elements;
    reached = reached || p.trainable;
    before_head = before_head || (p.trainable && (&p != head || outline.tied_embeddings));
    const int64_t number = layer_of(p.name);
    if (number < 0 || number >= outline.layers) continue;
    Layer& layer = layers[static_cast<size_t>(number)];
    layer.backward = reached;
    if (p.shape.size() < 2) continue;
    const double met = p.shape.size() == 3 && outline.moe
                           ? elements * static_cast<double>(outline.moe->active_experts) /
                                 static_cast<double>(outline.moe->experts)
                           : elements;
    layer.products += met;
    layer.frozen += p.trainable ? 0 : met;
  }
  steptime::Frozen out;
  double products = 0;
  for (const Layer& layer : layers) {
    out.layers += layer.backward ? 0 : 1;
    products += layer.backward ? layer.products : 0;
    out.products += layer.backward ? layer.frozen : 0;
  }
  if (products > 0) out.products /= products;
  if (all > 0) out.parameters = frozen / all;
  out.head = head != nullptr && !head->trainable;
  out.head_input = head != nullptr && !before_head;
  return out;
}

double beside_attention(const ModelOutline& outline, const Shape& shape) {
  double all = 0;
  for (const ParameterOutline& p : outline.parameters)
    if (const int64_t layer = layer_of(p.name);
        layer >= 0 && layer < outline.layers && p.shape.size() >= 2)
      all += static_cast<double>(element_count(p.shape));
  return std::max(0.0, all - shape.layers * shape.attention_parameters());
}

}  // namespace

int64_t layer_of(const std::string& name) {
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (!part.empty() && part.size() <= 9 && std::all_of(part.begin(), part.end(), [](char c) {
          return std::isdigit(static_cast<unsigned char>(c)) != 0;
        }))
      return std::stoll(part);
    begin = end + 1;
  }
  return -1;
}

bool reduces_each(const ShardingPlan& plan) {
  if (plan.replicated) return false;
  const bool flat = plan.sharding.layout == ShardLayout::flat && plan.sharding.level >= 2;
  return flat || plan.sharding.reduction.every_micro_batch;
}

std::string machines_folder() {
  namespace fs = std::filesystem;
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed).parent_path();
  const fs::path installed = program / "../share/meshwright/configs/machines";
  return fs::is_directory(installed, failed) ? installed.lexically_normal().string()
                                             : std::string(MESHWRIGHT_MACHINES_SOURCE);
}

Shape shape_of(const ModelOutline& outline) {
  Shape out;
  out.hidden = static_cast<double>(outline.hidden_size);
  out.layers = static_cast<double>(outline.layers);
  out.heads = static_cast<double>(outline.attention_heads);
  out.kv_heads = static_cast<double>(outline.key_value_heads);
  out.head_dim = static_cast<double>(outline.head_dim);
  out.vocabulary = static_cast<double>(outline.vocab_size);
  out.tied = outline.tied_embeddings;
  out.gated = false;
  double dense = 0;  // elements of mlps that are no experts
  std::vector<bool> sparse(static_cast<size_t>(outline.layers));
  for (const ParameterOutline& p : outline.parameters) {
    const int64_t layer = layer_of(p.name);
    if (p.name.find("gate_proj") != std::string::npos ||
        p.name.find("gate_up_proj") != std::string::npos)
      out.gated = true;
    if (layer < 0 || layer >= outline.layers) continue;
    if (p.name.find(".experts.") != std::string::npos) sparse[static_cast<size_t>(layer)] = true;
    if (p.name.find(".mlp.") != std::string::npos && p.shape.size() == 2 &&
        p.name.find("expert") == std::string::npos && p.name.find(".gate.") == std::string::npos)
      dense += static_cast<double>(element_count(p.shape));
  }
  const double dense_layers = static_cast<double>(std::count(sparse.begin(), sparse.end(), false));
  if (outline.moe) {
    out.gated = true;
    out.experts = static_cast<double>(outline.moe->experts);
    out.experts_a_token = static_cast<double>(outline.moe->active_experts);
    out.expert_ffn = static_cast<double>(outline.moe->intermediate_size);
    out.shared_ffn =
        static_cast<double>(outline.moe->shared_experts * outline.moe->intermediate_size);
    out.dense_layers = dense_layers;
  }
  out.frozen = frozen_of(outline);
  const double with_mlp = outline.moe ? dense_layers : out.layers;
  // A model of other names than Hugging Face's: what its layers' matrices have beside attention.
  if (dense == 0 && !outline.moe) dense = beside_attention(outline, out);
  if (with_mlp > 0) out.ffn = dense / with_mlp / ((out.gated ? 3 : 2) * out.hidden);
  return out;
}

double compute_width(const plan::Job& job, const plan::JobPlan& plan) {
  return ways_of(job, plan).width;
}

double peak_of(const Machine& machine, double width) {
  return width > 2 ? machine.peak_fp32 : machine.peak_bf16;
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
  Job& sizes = out.job;
  set_sizes(plan, sizes);
  sizes.ranks_per_host = std::min(machine.network.ranks_per_host, sizes.ranks);
  const Ways ways = ways_of(job, plan);
  sizes.width = ways.width;
  sizes.sequence_parallel = cuts_sequence(plan.tp);
  switch (plan.shared.activation_checkpointing) {
    case ActivationCheckpointing::none:
      break;
    case ActivationCheckpointing::full:
      sizes.recompute = steptime::Recompute::full;
      break;
    case ActivationCheckpointing::selective:
      sizes.recompute = steptime::Recompute::selective;
      break;
  }
  // The engine's own norm, rotary and SwiGLU kernels, and its loss without copies.
  sizes.fusion = steptime::Fusion::fused;
  sizes.loss = steptime::Loss::fused;
  sizes.optimizer_bytes = 44;
  if (plan.shared.enable_async_tensor_parallel) sizes.async_tp = steptime::AsyncTp::torch;
  set_data_traffic(plan, out.shape, ways, sizes);

  const double passes = sizes.micro_batches * sizes.runs * out.shape.layers / sizes.pp;
  const Group tp{sizes.tp, 1, sizes.ranks_per_host}, cp{sizes.cp, sizes.tp, sizes.ranks_per_host},
      ep{sizes.ep, 1, sizes.ranks_per_host},
      replicas{sizes.replicas(), sizes.tp * sizes.shard, sizes.ranks_per_host};
  double left = 1;
  if (sizes.async_tp == steptime::AsyncTp::torch) left = machine.overlap.async_tp;
  if (sizes.tp > 1) sizes.tp_seconds = left * exposed_seconds(machine, plan, "tp", tp) / passes;
  if (sizes.cp > 1) sizes.cp_seconds = exposed_seconds(machine, plan, "cp", cp) / passes;
  if (sizes.ep > 1) sizes.ep_seconds = exposed_seconds(machine, plan, "ep", ep) / passes;
  sizes.beside_seconds = steptime::all_reduce(machine, replicas, data_moved(plan).seldom);

  out.time = steptime::predict(machine, out.shape, sizes);
  const Bytes& b = plan.footprint->bytes;
  out.memory =
      static_cast<double>(b.weights + b.gradients + b.optimizer + b.transient + b.activations);
  finish(out);
  return out;
}

Forecast forecast(const Machine& machine, const Shape& shape, const Job& job) {
  Forecast out;
  out.machine = machine;
  out.shape = shape;
  out.job = job;
  out.time = steptime::predict(machine, shape, job);
  out.memory = out.time.memory.peak();
  finish(out);
  return out;
}

}  // namespace meshwright::forecast
