// What every strategy shares: the [distributed] table and its sub-tables mp_policy, moe and
// pipeline, typed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/options.h"

namespace meshwright {

// Sizes as wished for; the mesh holds the actual ones. Absent, "auto", "none", 0 and negatives
// mean: inferred (dp) or 1.
struct ParallelSizes {
  std::optional<int64_t> dp;
  int64_t dp_replicate = 1, tp = 1, cp = 1, pp = 1, ep = 1;
};

// Parameters are cast to param_dtype for the gather and the computation, gradients reduced in
// reduce_dtype; the same under every strategy and world size.
struct MixedPrecision {
  DType param = DType::bfloat16, reduce = DType::float32, output = DType::bfloat16;
  bool cast_forward_inputs = true;
};

enum class ActivationCheckpointing : uint8_t { none, full, selective };

// The tp_plan key: nothing, a plan's name, or patterns.
struct TpPlanChoice {
  enum class Kind : uint8_t { automatic, named, custom };
  Kind kind = Kind::automatic;
  std::string name;
  StringMap patterns;  // pattern = style string, in file order
};

// How tokens reach the experts of other ranks: each to the ranks that hold its experts, or all
// tokens to all ranks of ep.
enum class TokenDispatcher : uint8_t { all_to_all, all_gather };

struct MoeOptions {
  TokenDispatcher dispatcher = TokenDispatcher::all_to_all;
  bool ignore_router_for_ac = true;
  bool reshard_after_forward = false;
  std::optional<DType> lm_head_precision;
  bool wrap_outer_model = true;
  std::optional<MixedPrecision> mp_policy;
  bool fake_balanced_gate = false;
};

struct PipelineOptions {
  std::string schedule = "1f1b";  // as written
  std::string schedule_csv;
  int64_t microbatch_size = 1;
  std::optional<int64_t> batch_size;  // nullopt: all samples of a data-parallel rank and step
  int64_t first_stage_less_layers = 0, last_stage_less_layers = 0;
  std::optional<int64_t> layers_per_stage;
  enum class Round : uint8_t { none, up, down } round = Round::none;
  StringTable module_fqns_per_model_part;
  std::optional<DType> dtype;
  bool scale_grads_in_schedule = false;
  std::optional<int64_t> seq_len;
};

// How a query meets the keys of other ranks of cp: all at once, one rank's after the other, or with
// the heads shared out instead of the tokens.
enum class ContextMethod : uint8_t { all_gather, ring, ulysses };

struct ContextOptions {
  std::optional<ContextMethod> method;  // nullopt: whichever sends least
  bool head_tail = true;                // every rank has as much to compute under a causal mask
  std::optional<int64_t> ring_size, ulysses_size;
};

struct SharedOptions {
  ParallelSizes sizes;
  ContextOptions context;
  bool sequence_parallel = false;
  TpPlanChoice tp_plan;
  ActivationCheckpointing activation_checkpointing = ActivationCheckpointing::none;
  std::vector<std::string> activation_checkpointing_scope = {"all"};
  std::optional<DType> autocast_dtype;
  bool enable_async_tensor_parallel = false;
  MixedPrecision mp;
  MoeOptions moe;
  PipelineOptions pipeline;
  bool pipeline_given = false, moe_given = false;
};

// What a strategy may want to know of the job around it, for rules and for its plan.
struct JobView {
  int64_t max_steps = 0, checkpoint_every = 0;  // the latter in steps; 0: at the end only
  int64_t local_batch = 1, global_batch = 1;    // samples of a micro-batch, and of a step
  std::string optimizer = "adamw";
  std::optional<DType> main_dtype;  // of weights that the optimizer keeps beside the model's
  bool frozen_whole = false;        // what is frozen is not sharded: every rank keeps it whole
  double max_grad_norm = 0;         // 0: gradients are not clipped
};

// All that a strategy reads: shared options, and its own table with defaults filled in.
// `shared_values` is the [distributed] table itself, for errors that point at the place of a key.
struct StrategyConfig {
  SharedOptions shared;
  Options own;
  Options shared_values;
  JobView job;
};

}  // namespace meshwright
