#include "apps/performance/steptime/predict.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "apps/performance/steptime/job.h"
#include "apps/performance/steptime/kernels.h"

namespace meshwright::steptime {

double Shape::attention_parameters() const {
  return hidden * head_dim * (2 * heads + 2 * kv_heads);
}
double Shape::dense_parameters() const { return (gated ? 3 : 2) * hidden * ffn; }
double Shape::expert_parameters() const {
  return experts > 0 ? 3 * hidden * (experts * expert_ffn + shared_ffn) + experts * hidden : 0;
}
double Shape::layer_parameters() const {
  const double sparse = experts > 0 ? (layers - dense_layers) / layers : 0;
  return attention_parameters() + 2 * hidden + sparse * expert_parameters() +
         (1 - sparse) * dense_parameters();
}
double Shape::routed_parameters() const {
  return experts > 0 ? (layers - dense_layers) / layers * 3 * hidden * experts * expert_ffn : 0;
}
double Shape::layer_of_rank(double tp, double ep) const {
  const double routed = routed_parameters();
  return (layer_parameters() - routed) / tp + routed / (ep > 1 ? ep : tp);
}
double Shape::root_parameters() const { return hidden * vocabulary * (tied ? 1 : 2); }
double Shape::parameters() const { return layers * layer_parameters() + root_parameters(); }

double Shape::flop_a_token(double length) const {
  const double sparse = experts > 0 ? (layers - dense_layers) / layers : 0;
  const double active = sparse * 3 * hidden * (experts_a_token * expert_ffn + shared_ffn) +
                        (1 - sparse) * dense_parameters() + attention_parameters();
  const double all =
      6 * (layers * active + hidden * vocabulary) + 12 * layers * heads * head_dim * length;
  return all - frozen.layers * (4 * active + 8 * heads * head_dim * length) -
         2 * frozen.products * (layers - frozen.layers) * active -
         (frozen.head ? 2 : 0) * hidden * vocabulary -
         (frozen.head_input ? 2 : 0) * hidden * vocabulary;
}

namespace {

// Micro-batches whose activations a rank holds, in its whole share of the layers: of the first rank
// and of the last (docs/cost_model.md, "Memory of a rank").
struct InFlight {
  double first = 0, last = 0;
};
InFlight in_flight(const Job& job) {
  const double p = job.pp, v = job.stages, m = job.micro_batches;
  double first = p, last = 1;
  switch (job.schedule) {
    case PipelineSchedule::gpipe:
    case PipelineSchedule::looped_bfs:
      first = last = m;
      break;
    case PipelineSchedule::one_f_one_b:
    case PipelineSchedule::interleaved_1f1b:
      if (v > 1) {
        first = p + (p - 1) / v;
        last = 1 + (v - 1) * p / v;
      }
      break;
    case PipelineSchedule::interleaved_zero_bubble:
    case PipelineSchedule::zbv_zero_bubble:
      last = p;
      break;
    case PipelineSchedule::dual_pipe_v:
      first = last = p + 0.5;
      break;
  }
  first = std::min(first, m);
  return {first, std::min(last, first)};
}

}  // namespace

Memory memory_of(const Shape& shape, const Job& job) {
  const double t = job.tp, h = shape.hidden, T = job.tokens(), w = job.width;
  const double hs = job.sequence_parallel ? h / t : h, q = shape.heads * shape.head_dim / t,
               kv = std::max(1.0, shape.kv_heads / t) * shape.head_dim, f = shape.ffn / t;
  const double layer = shape.layer_parameters() / t, root = shape.root_parameters() / t;
  const double layers = shape.layers / job.pp;
  const double own_root = job.pp > 1 && !shape.tied && !folds(job.schedule) ? root / 2 : root;
  const double held = layers * layer + own_root;
  Memory out;
  const double trained = 1 - shape.frozen.parameters;
  const double states = job.state_whole + job.state_cut / job.shard;
  const double stored = job.frozen_whole
                            ? job.stored
                            : std::min(states, job.stored / (job.state_whole > 0 ? 1 : job.shard));
  out.states = held * (trained * states + (1 - trained) * stored);
  if (job.whole_gradients > 0) {
    const double whole = layers * shape.layer_of_rank(t, job.ep) + own_root;
    out.transient +=
        trained * whole * (job.whole_gradients - (job.engine_memory ? 0 : job.stored / job.shard));
  }
  if (job.data.transient >= 0) {
    out.transient += job.data.transient;
  } else if (job.data.gather_forward != When::never && job.shard > 1) {
    // Between two backwards of a pipeline the weights stay.
    const bool each = job.data.layer_gathered_again > 0 && (job.pp <= 1 || job.engine_memory);
    const double gathered = job.data.layer_gathered, reduced = job.data.layer_reduced;
    out.transient += job.data.root_gathered + (each ? 1 + job.data.ahead : layers) * gathered;
    if (job.whole_gradients <= 0)
      out.transient += 2 * reduced + (job.engine_memory ? job.data.root_reduced : 0);
  }
  out.states *= job.counted;
  out.transient *= job.counted;
  // What a layer keeps of a token, in elements.
  const double mlp = shape.experts > 0 ? shape.experts_a_token * (2 * shape.expert_ffn + h)
                                       : (shape.gated ? 3 : 2) * f;
  const double input = job.engine_memory ? h : hs;
  const double whole = 2 * hs + 2 * input + 2 * q + 2 * kv + mlp;
  double kept = whole, scores = 0;
  if (job.attention == Attention::unfused) scores = 5 / w * shape.heads / t * job.length / job.cp;
  double layer_working = 0;
  switch (job.recompute) {
    case Recompute::none:
      kept += scores;
      break;
    case Recompute::full:
      kept = job.recomputed_layers * hs + (1 - job.recomputed_layers) * (whole + scores);
      layer_working = whole + scores + q + f;
      break;
    case Recompute::selective:
      kept = whole - mlp + scores;
      layer_working = mlp + f;
      break;
    case Recompute::products:
      kept = 2 * hs + 2 * q + kv + f;
      layer_working = whole;
      break;
    case Recompute::attention:
      layer_working = scores;
      break;
  }
  const double words = job.head_cut ? shape.vocabulary / t : shape.vocabulary;
  // Of a pipeline's ranks the fullest counts, which may have none of the frozen beginning.
  const double passed = job.pp > 1 ? layers : layers - shape.frozen.layers;
  const double pass = passed * T * w * kept, working = T * w * layer_working,
               logits = job.logits * T * words;
  if (job.pp <= 1) {
    out.activations = pass;
    out.working = job.engine_memory ? logits + working + 2 * T * w * h : std::max(logits, working);
    return out;
  }
  // The first rank has the most passes in flight, the last one the logits.
  const auto [first, last] = in_flight(job);
  const bool by_logits = last * pass + logits > first * pass + working;
  out.activations = (by_logits ? last : first) * pass;
  out.working = by_logits ? std::max(logits, working) : working;
  if (job.engine_memory) out.working += first * job.stages * T * w * h;  // messages
  return out;
}

namespace {

// Bytes a second of a rank, where states lie on the host: its link (16 lanes of PCIe 4, as copies
// attain them), and its part of the memory of a host of eight. Guessed: machine files do not say.
constexpr double kHostLink = 25e9, kHostLinkUnpinned = 8e9, kHostMemory = 20e9;

// What micro-batches take, of which a step has several.
constexpr double Parts::* kOfMicroBatches[] = {
    &Parts::products, &Parts::attention, &Parts::elementwise, &Parts::recompute, &Parts::tp,
    &Parts::cp,       &Parts::ep,        &Parts::shard,       &Parts::host};

void scale(Parts& parts, double by) {
  for (double Parts::* part : kOfMicroBatches) parts.*part *= by;
}

void add(Parts& to, const Parts& p, double times) {
  for (double Parts::* part : kOfMicroBatches) to.*part += times * p.*part;
}

// Ranks that share a processor: what one gains on average where the share `busy` of the time of
// each is work, and the rest is waiting.
double faster(const Machine& machine, const Job& job, double busy) {
  const double ranks = std::min(job.ranks_per_host, job.ranks);
  if (machine.overlap.alone <= 1 || ranks <= 1 || busy >= 1) return 1;
  return 1 + (machine.overlap.alone - 1) * ranks * (1 - busy) / (ranks - 1);
}

// Seconds of the data-parallel exchanges of one layer, and of what lies around the layers.
struct Shards {
  double gather = 0, gather_again = 0, reduce = 0, root_gather = 0, root_reduce = 0, copy_out = 0,
         copy_in = 0;
};

Shards shards_of(const Machine& machine, const Job& job) {
  const DataTraffic& data = job.data;
  const Group shard{job.shard, job.tp, job.ranks_per_host, job.ranks},
      replicas{job.replicas(), job.tp * job.shard, job.ranks_per_host, job.ranks};
  auto reduce = [&](double scattered, double summed) {
    return reduce_scatter(machine, shard, scattered) + all_reduce(machine, replicas, summed);
  };
  auto gather = [&](double bytes) { return all_gather(machine, shard, bytes); };
  const bool shared = job.shard > 1;
  return {gather(data.layer_gathered),
          gather(data.layer_gathered_again),
          reduce(data.layer_reduced, data.layer_summed),
          gather(data.root_gathered),
          reduce(data.root_reduced, data.root_summed),
          shared ? elementwise(machine, data.copied_out) : 0,
          shared ? elementwise(machine, data.copied_in) : 0};
}

// Collectives beside kernels: what they add to the kernels' time.
double beside(const Machine& machine, double compute, double moved) {
  if (moved <= 0) return 0;
  if (machine.overlap.adds) return moved;
  return std::max(compute + machine.overlap.kappa * moved, moved) - compute;
}

bool now(When when, bool chosen) { return when == When::each || (when == When::once && chosen); }

// Forward of all layers and backward of `passed` ones of one micro-batch, without a pipeline.
void add_micro_batches(const Machine& machine, const Job& job, const LayerTime& layer,
                       const EndTime& ends, double layers, double passed, Parts& parts) {
  const Shards s = shards_of(machine, job);
  const DataTraffic& data = job.data;
  const double forward = layer.forward.sum(), backward = layer.backward.sum();
  auto gathering = [&](double kernels) {
    return data.ahead > 0 ? beside(machine, kernels + s.copy_out, s.gather) : s.gather;
  };
  auto one = [&](bool first, bool last, double times) {
    if (times <= 0) return;
    const bool gf = now(data.gather_forward, first), gb = data.layer_gathered_again > 0,
               rd = now(data.reduce, last);
    double shard = 0;
    if (gf) shard += s.root_gather + s.gather + layers * (s.copy_out + gathering(forward));
    double copies = (gb ? s.copy_out : 0) + (rd ? s.copy_in : 0);
    double moved = data.ahead > 0 ? s.gather_again : 0;
    if (data.ahead <= 0) copies += s.gather_again;
    // What is reduced is given for a layer on average.
    if (rd && data.hidden && passed > 0) moved += s.reduce * layers / passed;
    shard += passed * (copies + beside(machine, backward + copies, moved));
    if (rd) shard += s.root_reduce + (data.hidden && passed > 0 ? 0 : layers * s.reduce);
    add(parts, layer.forward, times * layers);
    add(parts, layer.backward, times * passed);
    for (const Parts* end : {&ends.embedding_forward, &ends.embedding_backward, &ends.head_forward,
                             &ends.head_backward})
      add(parts, *end, times);
    parts.shard += times * shard;
  };
  if (job.micro_batches == 1) {
    one(true, true, 1);
  } else {
    one(true, false, 1);
    one(false, false, job.micro_batches - 2);
    one(false, true, 1);
  }
}

}  // namespace

double makespan(PipelineSchedule schedule, int64_t ranks, int64_t local, int64_t micro_batches,
                std::span<const PipelineTimes> times, double message) {
  auto take = [&](int64_t m) {
    return simulate_pipeline(make_actions(schedule, ranks, local, m), times, message).makespan;
  };
  if (micro_batches <= 4 * ranks) return take(micro_batches);
  const double two = take(2 * ranks), three = take(3 * ranks);
  return two + (three - two) / static_cast<double>(ranks) *
                   static_cast<double>(micro_batches - 2 * ranks);
}

namespace {

void add_pipeline(const Machine& machine, const Shape& shape, const Job& job,
                  const LayerTime& layer, const EndTime& ends, Bubble bubble, Parts& parts) {
  const double stages = job.pp * job.stages, m = job.micro_batches * job.runs;
  const double layers = shape.layers / stages;  // of a stage
  const Shards s = shards_of(machine, job);
  const DataTraffic& data = job.data;
  // What is gathered or reduced for every micro-batch lies beside its own kernels.
  double shard_forward = 0, shard_backward = 0;
  if (data.gather_forward == When::each)
    shard_forward =
        layers * (s.copy_out + beside(machine, layer.forward.sum() + s.copy_out, s.gather));
  {
    const bool gathers = data.layer_gathered_again > 0, reduces = data.reduce == When::each;
    const double copies = (gathers ? s.copy_out : 0) + (reduces ? s.copy_in : 0),
                 moved = s.gather_again + (reduces ? s.reduce : 0);
    shard_backward = layers * (copies + beside(machine, layer.backward.sum() + copies, moved));
  }
  const double forward = layers * layer.forward.sum() + shard_forward,
               backward = layers * layer.backward.sum() + shard_backward;
  // The first stages may have layers without a backward: shares that have one, of a stage, and of
  // all that the fullest rank has, as if stages were dealt in turn.
  auto passed = [&](int64_t stage) {
    return 1 - std::clamp(shape.frozen.layers / layers - static_cast<double>(stage), 0.0, 1.0);
  };
  const auto ranks = static_cast<int64_t>(job.pp), all_stages = static_cast<int64_t>(stages);
  double share = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    double sum = 0;
    for (int64_t stage = rank; stage < all_stages; stage += ranks) sum += passed(stage);
    share = std::max(share, sum / job.stages);
  }
  std::vector<PipelineTimes> times;
  for (int64_t stage = 0; stage < all_stages; ++stage)
    times.push_back({forward, passed(stage) * backward / 2, passed(stage) * backward / 2});
  const double first = ends.embedding_forward.sum() + ends.embedding_backward.sum(),
               last = ends.head_forward.sum() + ends.head_backward.sum();
  times.front().forward += ends.embedding_forward.sum();
  times.front().weight += ends.embedding_backward.sum();
  times.back().forward += ends.head_forward.sum();
  times.back().input += ends.head_backward.sum() / 2;
  times.back().weight += ends.head_backward.sum() / 2;
  const double cut = job.sequence_parallel ? job.tp : 1;
  const double message = send(machine, {job.pp, job.ranks / job.pp, job.ranks_per_host, job.ranks},
                              job.width * job.tokens() * shape.hidden / cut);
  const bool folded = folds(job.schedule);  // both ends on the first rank
  const double work = m * job.stages * (forward + share * backward),
               fullest = m * (folded ? first + last : std::max(first, last));
  double span = 0;
  if (bubble == Bubble::simulated) {
    span = job.runs * makespan(job.schedule, static_cast<int64_t>(job.pp),
                               static_cast<int64_t>(job.stages),
                               static_cast<int64_t>(job.micro_batches), times, message);
  } else {
    const double filling = (job.pp - 1) * (forward + share * backward + 2 * message);
    span = work + fullest + job.runs * filling;
  }
  add(parts, layer.forward, m * job.stages * layers);
  add(parts, layer.backward, m * job.stages * layers * share);
  if (folded || last >= first) {
    add(parts, ends.head_forward, m);
    add(parts, ends.head_backward, m);
  }
  if (folded || last < first) {
    add(parts, ends.embedding_forward, m);
    add(parts, ends.embedding_backward, m);
  }
  // Where messages share the cores with the work, nothing is left to hide them.
  const double sent = machine.overlap.adds ? 2 * m * job.stages * message : 0;
  const double mean = work + sent + m * (first + last) / job.pp;
  span = std::max(mean, span / faster(machine, job, mean / span));
  const double kept = work + fullest;
  if (span < kept) scale(parts, span / kept);
  parts.bubble = std::max(0.0, span - kept);

  const double local = layers * job.stages;
  const bool gathers = data.gather_forward == When::once, reduces = data.reduce == When::once;
  const double gathered = gathers ? s.root_gather / 2 + local * s.gather : 0,
               reduced = reduces ? s.root_reduce / 2 + local * s.reduce : 0;
  // Nothing hides on cores that do both.
  const bool hidden = data.hidden && !machine.overlap.adds;
  const double room_forward = hidden && data.ahead > 0 ? job.stages * forward : 0,
               room_backward = hidden ? job.stages * share * backward : 0;
  parts.shard = m * job.stages * (shard_forward + share * shard_backward) +
                std::max(0.0, gathered - room_forward) + std::max(0.0, reduced - room_backward) +
                (hidden ? machine.overlap.kappa * (gathered + reduced) : 0) +
                local * ((gathers ? s.copy_out : 0) + (reduces ? s.copy_in : 0));
}

}  // namespace

Prediction predict(const Machine& machine, const Shape& shape, const Job& job, Bubble bubble) {
  Prediction out;
  const LayerTime layer = layer_time(machine, shape, job);
  const EndTime ends = end_time(machine, shape, job);
  if (job.pp > 1)
    add_pipeline(machine, shape, job, layer, ends, bubble, out.parts);
  else
    add_micro_batches(machine, job, layer, ends, shape.layers, shape.layers - shape.frozen.layers,
                      out.parts);
  const double held = (shape.layers * shape.layer_parameters() / job.pp +
                       shape.root_parameters() / (job.pp > 1 && !shape.tied ? 2 : 1)) /
                      (job.tp * job.shard);
  const double updated = job.lora ? 0 : job.optimizer_bytes * (1 - shape.frozen.parameters) * held;
  out.parts.optimizer = job.offload.on ? updated / kHostMemory : update(machine, updated);
  out.parts.host += machine.host.fixed;
  out.parts.shard += job.beside_seconds;
  if (job.offload.on)
    out.parts.shard += job.offload.copied / (job.offload.pinned ? kHostLink : kHostLinkUnpinned);
  const double doublings = std::max(0.0, std::log2(job.ranks / 8));
  out.parts.stragglers = machine.overlap.jitter * doublings * out.parts.sum();
  out.seconds = out.parts.sum();
  return out;
}

}  // namespace meshwright::steptime
