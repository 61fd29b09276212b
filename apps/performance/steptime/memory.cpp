#include <algorithm>

#include "apps/performance/steptime/predict.h"

namespace meshwright::steptime {
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

}  // namespace meshwright::steptime
