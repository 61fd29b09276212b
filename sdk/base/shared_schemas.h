// The [distributed] table and its sub-tables as the engine and the conformance kit read them:
// schemas in, SharedOptions out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/shared_options.h"

namespace meshwright {

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

// Words of a model's own plan, and of distributed.tp_plan, that are no style, but say what a module
// sees that stands whole among the projections of a block: its heads, or the stream.
inline constexpr std::string_view kOfHeads = "replicated_with_grad_allreduce",
                                  kOfStream = "replicated";

// Schemas of [distributed] and of its sub-tables, owner "engine".
MESHWRIGHT_API const OptionSchema& distributed_schema();
MESHWRIGHT_API const OptionSchema& mp_policy_schema();
MESHWRIGHT_API const OptionSchema& moe_schema();
MESHWRIGHT_API const OptionSchema& moe_mp_policy_schema();
MESHWRIGHT_API const OptionSchema& pipeline_schema();
MESHWRIGHT_API const OptionSchema& context_schema();

// Types the tables. Adds to `diagnostics`: a bad scope, a pipeline or context block without pp or
// cp > 1 (warning),
// a pipeline dtype that differs from the output dtype (warning).
MESHWRIGHT_API SharedOptions read_shared_options(const Options& distributed,
                                                 const Options& mp_policy, const Options& moe,
                                                 const Options& moe_mp_policy,
                                                 const Options& pipeline, const Options& context,
                                                 Diagnostics& diagnostics);

// The same with every other table at its defaults.
MESHWRIGHT_API SharedOptions read_shared_options(const Options& distributed,
                                                 Diagnostics& diagnostics);

// The grammar of activation_checkpointing_scope: '+' and ',' separate, '-' equals '_', "default"
// and "auto" mean "all"; order kept, duplicates dropped. Throws Error(bad_choice) for an unknown
// name or "all" beside another.
MESHWRIGHT_API std::vector<std::string> parse_checkpointing_scope(const OptionValue& value);
// The words of activation_checkpointing: booleans and {off, none, disabled, no, on, full, enabled,
// yes, selective} in any case.
MESHWRIGHT_API ActivationCheckpointing parse_activation_checkpointing(const OptionValue& value);

}  // namespace meshwright
