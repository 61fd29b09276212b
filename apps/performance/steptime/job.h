// A job as the step-time model sees it: the sizes of its model, how it is cut, and what its
// strategy moves when.
#pragma once

#include <cstdint>

#include "sdk/base/pipeline.h"

namespace meshwright::steptime {

// What the frozen part of a model leaves out of a step.
struct Frozen {
  double layers = 0;    // the first ones: nothing in or before them trains, they have no backward
  double products = 0;  // of the other layers' products: the share whose weight has no gradient
  bool head = false;    // its weight has none
  bool head_input = false;  // nor has its input: nothing before it trains
  double parameters = 0;    // share of all that is not reduced and not updated
  double adapted = 0;  // share of the layers' Linears, by their ends, with an adapter beside them
};

struct Shape {
  double hidden = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocabulary = 0;
  bool gated = true, tied = false;
  double experts = 0, experts_a_token = 0, expert_ffn = 0, shared_ffn = 0;
  double dense_layers = 0;  // of a model with experts, those without
  Frozen frozen;

  double attention_parameters() const;  // of a layer
  double dense_parameters() const;      // its mlp, where it has no experts
  double expert_parameters() const;     // all experts of a layer, 0 without
  double routed_parameters() const;     // experts that a router chooses from, on average of a layer
  double layer_parameters() const;      // on average, experts and norms included
  // Of a layer, what a rank computes with: cut by tp, experts by ep where that has ranks.
  double layer_of_rank(double tp, double ep) const;
  double root_parameters() const;  // embedding and head
  double parameters() const;
  // Of a token in forward and backward, by the convention of published figures: 6 an active
  // parameter but the embedding, 12 L h s for attention, nothing for recomputation. Without the
  // gradients that a frozen part does not have: 2 of each 6, or 4 and 8 of the 12 where there is no
  // backward.
  double flop_a_token(double length) const;
};

enum class Recompute : uint8_t { none, full, selective, products, attention };
enum class Fusion : uint8_t { eager, compiled, fused };
enum class Loss : uint8_t { plain, compiled, fused, unfused_parallel };
enum class Attention : uint8_t { flash, fa2, triton, unfused };
enum class AsyncTp : uint8_t { no, torch, buffers };
enum class ContextWay : uint8_t { gather, ring, torch_ring };
// When a collective of a unit takes place: never, in one micro-batch of a step, in each.
enum class When : uint8_t { never, once, each };

// What the data-parallel strategy moves: bytes of one layer and of what lies around the layers.
struct DataTraffic {
  When gather_forward = When::never, reduce = When::never;
  double layer_gathered = 0, root_gathered = 0;  // bytes, whole
  double layer_gathered_again = 0;               // in the backward of each micro-batch
  double layer_reduced = 0, root_reduced = 0;    // bytes, whole, scattered over the shard
  double layer_summed = 0, root_summed = 0;      // bytes, all-reduced over the replicas
  bool hidden = true;                            // reductions lie beside compute
  double ahead = 1;                              // units gathered ahead; 0: none, nothing hides it
  // Bytes of a rank beside its states, where a strategy keeps the parameters whole: copies in
  // another dtype, gradients that are not reduced yet; below 0: from the figures above.
  double transient = -1;
  double copied_out = 0, copied_in = 0;  // bytes of copies a layer, out of a gather, into
                                         // a reduction

  bool operator==(const DataTraffic&) const = default;
};

// Whether the stages turn back at the last rank, so that the first has both ends of the model.
inline bool folds(PipelineSchedule schedule) {
  return schedule == PipelineSchedule::zbv_zero_bubble || schedule == PipelineSchedule::dual_pipe_v;
}

// States that lie on the host, where they are updated, too.
struct Offload {
  bool on = false, pinned = true;
  double copied = 0;  // bytes of a step over the host's link, both ways

  bool operator==(const Offload&) const = default;
};

// Bytes that clipping and a fused AdamW read and write, a float32 parameter.
inline constexpr double kFusedOptimizer = 44;
// The same with another number of states than AdamW's two, each of which is read and written.
inline double optimizer_bytes_of(double states) { return kFusedOptimizer + 8 * (states - 2); }

struct Job {
  double ranks = 1, ranks_per_host = 8;
  double tp = 1, cp = 1, pp = 1, stages = 1, ep = 1;  // `stages`: of a rank
  double shard = 1;  // ranks that share a shard, those of cp among them
  double micro_batch = 1, micro_batches = 1, length = 1;  // micro-batches of a run of the pipeline
  double runs = 1;                                        // of the pipeline, a step
  double width = 2;                                       // bytes of an element in compute
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;

  Recompute recompute = Recompute::none;
  double recomputed_layers = 1;  // share of the layers
  Fusion fusion = Fusion::eager;
  Loss loss = Loss::plain;
  Attention attention = Attention::flash;
  bool fp8 = false, lora = false;
  // Casts to fp8 as this engine makes them, which are several kernels, of the Linears whose sizes
  // allow it and of no experts; not as the published runs' programs do.
  bool engine_casts = false;
  bool tf32 = false;  // products of float32, where the machine has a peak for it

  bool sequence_parallel = true;
  bool separate_columns = false;  // q, k, v, gate and up gather their input each
  bool head_cut = true;           // the logits stay cut over tp
  bool regathers = false;         // backward gathers the inputs of Linears again (Megatron)
  bool copies_exchanges = false;  // a gather along the sequence is laid out anew (torch)
  AsyncTp async_tp = AsyncTp::no;
  ContextWay context = ContextWay::gather;

  DataTraffic data;
  // Seconds of the exchanges of one layer and micro-batch, both ways together, where the plan of
  // the job says how many bytes they are; below 0: from the sizes above.
  double tp_seconds = -1, cp_seconds = -1, ep_seconds = -1;
  double beside_seconds = 0;    // of a step, hidden by nothing
  double optimizer_bytes = 60;  // read and written, a local parameter
  Offload offload;
  double host_forward = 0, host_backward = 0;  // in place of the machine's, where not 0

  // Of memory_of(): bytes a parameter, whole and cut over the ranks of a shard.
  double state_whole = 0, state_cut = 16;
  double whole_gradients = 0;  // bytes a parameter, unsharded until the last micro-batch
  double stored = 4;           // bytes of a stored weight; where some do not train, of these
  bool frozen_whole = false;   // every rank has these whole
  double logits = 14;          // bytes an entry
  double counted = 1;          // times these, and what is beside them: by a strategy's own count
  // As this engine keeps memory (docs/cost_model.md), not as the published runs' programs do.
  bool engine_memory = false;

  bool operator==(const Job&) const = default;
  double dp() const { return ranks / (tp * cp * pp); }
  double replicas() const { return ranks / (tp * pp * shard); }
  double tokens() const { return micro_batch * length / cp; }  // of a micro-batch on a rank
  double tokens_a_step() const { return micro_batch * micro_batches * runs * length * dp(); }
};

}  // namespace meshwright::steptime
