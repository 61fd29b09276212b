// The option tables every strategy shares. Names and defaults are what users write; the reference
// page is made from them.
#include "shared_schemas.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "text.h"
#include "words.h"

namespace meshwright {

namespace {

constexpr meshwright_option size_option(const char* name, const char* default_value,
                                        const char* doc) {
  return with_flags(option(name, MESHWRIGHT_INT, default_value, doc), MESHWRIGHT_OPTIONAL);
}
constexpr meshwright_option dtype_option(const char* name, const char* default_value,
                                         const char* doc, uint32_t flags = 0,
                                         const char* dtypes = text::kTrainingDTypes) {
  return with_flags(choice_option(name, default_value, dtypes, doc), MESHWRIGHT_DTYPE | flags);
}
constexpr meshwright_option list_choice(const char* name, uint32_t type, const char* default_value,
                                        const char* choices, uint32_t flags, const char* doc) {
  meshwright_option o = with_flags(option(name, type, default_value, doc), flags);
  o.choices = choices;
  return o;
}

constexpr std::array kDistributed = {
    option("strategy", MESHWRIGHT_STRING, "\"fsdp2\"",
           "Which parallel strategy trains the model: the name of any discovered plugin, in any "
           "letter case."),
    size_option("dp_size", "\"auto\"",
                "Data-parallel ranks (dp_replicate * dp_shard). \"auto\" or a number below 1: "
                "world / (tp * cp * pp)."),
    size_option("dp_replicate_size", "1",
                "HSDP replicas: how many groups of ranks hold a full set of shards. Must divide dp "
                "and be smaller than it."),
    size_option("tp_size", "1",
                "Tensor-parallel ranks. Must divide the attention and key-value heads."),
    size_option("cp_size", "1", "Context-parallel ranks: how many ranks share one sequence."),
    size_option("pp_size", "1", "Pipeline-parallel ranks."),
    size_option("ep_size", "1", "Expert-parallel ranks. Must divide dp * cp * tp."),
    bool_option("sequence_parallel", false,
                "Shard activations along the sequence between tensor-parallel blocks. Ignored when "
                "tp_size is 1."),
    with_aliases(with_flags(option("tp_plan", MESHWRIGHT_STRING | MESHWRIGHT_STRING_MAP, nullptr,
                                   "Tensor-parallel plan: the name of a registered plan (\"own\" "
                                   "and \"base\" always exist), or a table of "
                                   "pattern = style. Not set: chosen by the model's architecture."),
                            MESHWRIGHT_OPTIONAL),
                 "use_hf_tp_plan{true=own,false=base}"),
    list_choice("activation_checkpointing", MESHWRIGHT_BOOL | MESHWRIGHT_STRING, "\"none\"",
                "none|full|selective|false|off|disabled|no|true|on|enabled|yes",
                MESHWRIGHT_IGNORE_CASE,
                "Recompute activations in backward: none, full (whole layers), selective (mlp and "
                "both norms; attention is kept)."),
    option("activation_checkpointing_scope", MESHWRIGHT_STRING | MESHWRIGHT_STRING_LIST, "\"all\"",
           "Which parts are checkpointed: all, or some of language, vision, audio, multimodal, "
           "joined by + or , or as a list."),
    // LibTorch's autocast has lists of operators for these two alone.
    dtype_option("autocast_dtype", nullptr, "Run the forward under autocast with this dtype.",
                 MESHWRIGHT_OPTIONAL, "bfloat16|float16"),
    bool_option("enable_async_tensor_parallel", false,
                "Overlap the sequence-parallel collectives with the matrix products. Needs "
                "sequence_parallel."),
};

constexpr std::array kMpPolicy = {
    dtype_option("param_dtype", "\"bfloat16\"",
                 "Parameters are gathered and the forward and backward computed in this dtype."),
    dtype_option("reduce_dtype", "\"float32\"", "Gradients are reduced in this dtype."),
    dtype_option(
        "output_dtype", nullptr,
        "Floating-point outputs of the model are cast to this dtype; not set: param_dtype.",
        MESHWRIGHT_OPTIONAL),
    bool_option("cast_forward_inputs", true,
                "Cast floating-point inputs of each unit to param_dtype."),
};

constexpr std::array kMoe = {
    bool_option("ignore_router_for_ac", true,
                "Under activation checkpointing save the router's scores and choices instead of "
                "recomputing them."),
    list_choice("dispatcher", MESHWRIGHT_STRING, "\"auto\"", "auto|all_to_all|all_gather",
                MESHWRIGHT_IGNORE_CASE,
                "How tokens reach experts on other ranks: all_to_all sends each to the ranks of "
                "its experts, all_gather all to all ranks. auto: on a device all_gather where it "
                "sends no more and needs memory for at most twice as many rows, else all_to_all."),
    bool_option(
        "reshard_after_forward", false,
        "Free gathered parameters after forward, for all units of a mixture-of-experts model."),
    dtype_option("lm_head_precision", nullptr,
                 "Compute, reduce and output the head in this dtype (only float32 has an effect).",
                 MESHWRIGHT_OPTIONAL),
    bool_option("wrap_outer_model", true, "Also make the outer module (head, towers) a root unit."),
    bool_option("fake_balanced_gate", false,
                "For measuring speed: send tokens to the experts in turns, whatever the router "
                "says. Routers get gradients of zero."),
};

constexpr std::array kMoeMpPolicy = {
    dtype_option(
        "param_dtype", nullptr,
        "As distributed.mp_policy.param_dtype, for mixture-of-experts models; not set: the same.",
        MESHWRIGHT_OPTIONAL),
    dtype_option(
        "reduce_dtype", nullptr,
        "As distributed.mp_policy.reduce_dtype, for mixture-of-experts models; not set: the same.",
        MESHWRIGHT_OPTIONAL),
    dtype_option(
        "output_dtype", nullptr,
        "As distributed.mp_policy.output_dtype, for mixture-of-experts models; not set: the same.",
        MESHWRIGHT_OPTIONAL),
    with_flags(option("cast_forward_inputs", MESHWRIGHT_BOOL, nullptr,
                      "As distributed.mp_policy.cast_forward_inputs; not set: the same."),
               MESHWRIGHT_OPTIONAL),
};

constexpr std::array kPipeline = {
    option("pp_schedule", MESHWRIGHT_STRING, "\"1f1b\"",
           "GPipe, 1F1B (one stage a rank), Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, "
           "ZBVZeroBubble, DualPipeV (several); any "
           "letter case."),
    with_flags(option("pp_schedule_csv", MESHWRIGHT_STRING, nullptr,
                      "A file of schedule actions, instead of a named schedule."),
               MESHWRIGHT_OPTIONAL),
    int_option("pp_microbatch_size", "1", 1, "Samples a pipeline micro-batch."),
    with_flags(int_option("pp_batch_size", "\"auto\"", 1,
                          "Samples a pipeline run; a multiple of pp_microbatch_size. \"auto\": all "
                          "that a data-parallel rank has in a step, in one run."),
               MESHWRIGHT_OPTIONAL),
    with_flags(
        int_option(
            "layers_per_stage", nullptr, 1,
            "Layers a stage at most. Not set: one stage a rank (single) or two (interleaved)."),
        MESHWRIGHT_OPTIONAL),
    int_option("first_stage_less_layers", "0", 0,
               "Layers that the first stage has fewer than the others, for its embedding."),
    int_option("last_stage_less_layers", "0", 0,
               "Layers that the last stage has fewer than the others, for its norm and head."),
    list_choice(
        "round_virtual_stages_to_pp_multiple", MESHWRIGHT_STRING, nullptr, "up|down",
        MESHWRIGHT_OPTIONAL | MESHWRIGHT_IGNORE_CASE,
        "Round the number of stages up or down to a multiple of pp_size when it is not one."),
    with_flags(option("module_fqns_per_model_part", MESHWRIGHT_STRING_TABLE, nullptr,
                      "Explicit stages: a list of module names for each."),
               MESHWRIGHT_OPTIONAL),
    with_flags(
        bool_option("patch_inner_model", true, "A Hugging Face forward patch of the original."),
        MESHWRIGHT_NO_EFFECT),
    with_flags(
        bool_option("patch_causal_lm_model", true, "A Hugging Face forward patch of the original."),
        MESHWRIGHT_NO_EFFECT),
    with_flags(bool_option("patch_stage_backward_maybe_with_nosync", false,
                           "A backward patch of the original."),
               MESHWRIGHT_NO_EFFECT),
    dtype_option(
        "dtype", nullptr,
        "Dtype of the activations passed between stages. Not set: the policy's output dtype.",
        MESHWRIGHT_OPTIONAL),
    bool_option("scale_grads_in_schedule", false,
                "Divide gradients by the number of micro-batches inside the schedule."),
    with_flags(
        option("loss_fn", MESHWRIGHT_STRING, nullptr,
               "A Python import path in the original; the loss of the training loop is used."),
        MESHWRIGHT_OPTIONAL | MESHWRIGHT_NO_EFFECT),
    with_flags(int_option("pp_seq_len", nullptr, 1,
                          "Tokens a sample, so that stages need not negotiate shapes."),
               MESHWRIGHT_OPTIONAL),
};

constexpr std::array kContext = {
    list_choice(
        "method", MESHWRIGHT_STRING, "\"auto\"", "auto|all_gather|ring|ulysses",
        MESHWRIGHT_IGNORE_CASE,
        "How attention meets the tokens of other ranks: all_gather (all keys at once), ring "
        "(one rank's keys after the other), ulysses (heads for tokens); auto: of all_gather and "
        "ulysses what sends less, over several hosts ring for all_gather."),
    list_choice("load_balancer", MESHWRIGHT_STRING, "\"headtail\"", "headtail|none",
                MESHWRIGHT_IGNORE_CASE,
                "Which tokens a rank has: a chunk from the head and one from the tail, which is as "
                "much work for all, or one piece."),
    with_flags(int_option("ring_size", "\"auto\"", 1,
                          "Ranks between which keys travel; times ulysses_size it is cp_size."),
               MESHWRIGHT_OPTIONAL),
    with_flags(int_option("ulysses_size", "\"auto\"", 1,
                          "Ranks that share heads out; times ring_size it is cp_size."),
               MESHWRIGHT_OPTIONAL),
};

}  // namespace

const OptionSchema& distributed_schema() {
  static const OptionSchema schema = make_schema("distributed", "engine", kDistributed);
  return schema;
}
const OptionSchema& mp_policy_schema() {
  static const OptionSchema schema = make_schema("distributed.mp_policy", "engine", kMpPolicy);
  return schema;
}
const OptionSchema& moe_schema() {
  static const OptionSchema schema = make_schema("distributed.moe", "engine", kMoe);
  return schema;
}
const OptionSchema& moe_mp_policy_schema() {
  static const OptionSchema schema =
      make_schema("distributed.moe.mp_policy", "engine", kMoeMpPolicy);
  return schema;
}
const OptionSchema& context_schema() {
  static const OptionSchema schema = make_schema("distributed.context", "engine", kContext);
  return schema;
}
const OptionSchema& pipeline_schema() {
  static const OptionSchema schema = make_schema("distributed.pipeline", "engine", kPipeline);
  return schema;
}

namespace {

int64_t at_least_one(const Options& table, std::string_view name) {
  return std::max<int64_t>(1, table.find_int(name).value_or(1));
}

bool any_given(const Options& table) {
  for (const meshwright_option* option : table.schema().options)
    if (table.is_given(option->name)) return true;
  return false;
}

TpPlanChoice read_tp_plan(const Options& distributed) {
  TpPlanChoice choice;
  const OptionValue& value = distributed.value("tp_plan");
  if (const auto* name = std::get_if<std::string>(&value)) {
    choice.kind = TpPlanChoice::Kind::named;
    choice.name = *name;
  } else if (const auto* patterns = std::get_if<StringMap>(&value)) {
    choice.kind = TpPlanChoice::Kind::custom;
    choice.patterns = *patterns;
  }
  return choice;
}

// `output`: where it is named elsewhere; otherwise outputs keep what they were computed in.
MixedPrecision read_precision(const Options& table, const MixedPrecision& fallback,
                              std::optional<DType> output) {
  const DType param = table.find_dtype("param_dtype").value_or(fallback.param);
  if (!output) output = param;
  return {param, table.find_dtype("reduce_dtype").value_or(fallback.reduce),
          table.find_dtype("output_dtype").value_or(*output),
          table.find_bool("cast_forward_inputs").value_or(fallback.cast_forward_inputs)};
}

ContextOptions read_context(const Options& table) {
  ContextOptions out;
  const std::string method = text::normal(table.get_string("method"));
  if (method == "all_gather") out.method = ContextMethod::all_gather;
  if (method == "ring") out.method = ContextMethod::ring;
  if (method == "ulysses") out.method = ContextMethod::ulysses;
  out.head_tail = text::normal(table.get_string("load_balancer")) != "none";
  out.ring_size = table.find_int("ring_size");
  out.ulysses_size = table.find_int("ulysses_size");
  return out;
}

PipelineOptions read_pipeline(const Options& table) {
  PipelineOptions out;
  out.schedule = table.get_string("pp_schedule");
  // A schedule by name and a file of actions exclude each other; the default name steps back when a
  // file is given.
  if (table.is_set("pp_schedule_csv") && !table.is_given("pp_schedule")) out.schedule.clear();
  out.schedule_csv = table.get_string("pp_schedule_csv");
  out.microbatch_size = table.get_int("pp_microbatch_size");
  out.batch_size = table.find_int("pp_batch_size");
  out.first_stage_less_layers = table.get_int("first_stage_less_layers");
  out.last_stage_less_layers = table.get_int("last_stage_less_layers");
  out.layers_per_stage = table.find_int("layers_per_stage");
  std::string round = table.get_string("round_virtual_stages_to_pp_multiple");
  out.round = round == "up"     ? PipelineOptions::Round::up
              : round == "down" ? PipelineOptions::Round::down
                                : PipelineOptions::Round::none;
  if (const auto* parts = std::get_if<StringTable>(&table.value("module_fqns_per_model_part")))
    out.module_fqns_per_model_part = *parts;
  out.dtype = table.find_dtype("dtype");
  out.scale_grads_in_schedule = table.get_bool("scale_grads_in_schedule");
  out.seq_len = table.find_int("pp_seq_len");
  return out;
}

}  // namespace

struct StrategyConfig::Values {
  SharedOptions shared;
  Options own, distributed;
  JobView job;
};

StrategyConfig::StrategyConfig() : values_(std::make_unique<Values>()) {}
StrategyConfig::StrategyConfig(const StrategyConfig& other)
    : values_(std::make_unique<Values>(*other.values_)) {}
StrategyConfig::StrategyConfig(StrategyConfig&& other) noexcept
    : values_(std::exchange(other.values_, std::make_unique<Values>())) {}
StrategyConfig& StrategyConfig::operator=(const StrategyConfig& other) {
  *values_ = *other.values_;
  return *this;
}
StrategyConfig& StrategyConfig::operator=(StrategyConfig&& other) noexcept {
  StrategyConfig moved(std::move(other));
  std::swap(values_, moved.values_);
  return *this;
}
StrategyConfig::~StrategyConfig() = default;

const Options& StrategyConfig::own() const { return values_->own; }
Options& StrategyConfig::own() { return values_->own; }
const Options& StrategyConfig::distributed() const { return values_->distributed; }
Options& StrategyConfig::distributed() { return values_->distributed; }
const SharedOptions& StrategyConfig::shared() const { return values_->shared; }
SharedOptions& StrategyConfig::shared() { return values_->shared; }
const JobView& StrategyConfig::job() const { return values_->job; }
JobView& StrategyConfig::job() { return values_->job; }

const ParallelSizes& StrategyConfig::sizes() const { return shared().sizes; }
ParallelSizes& StrategyConfig::sizes() { return shared().sizes; }
const MixedPrecision& StrategyConfig::mp_policy() const { return shared().mp; }
MixedPrecision& StrategyConfig::mp_policy() { return shared().mp; }
const TpPlanChoice& StrategyConfig::tp_plan() const { return shared().tp_plan; }
bool StrategyConfig::sequence_parallel() const { return shared().sequence_parallel; }
bool StrategyConfig::enable_async_tensor_parallel() const {
  return shared().enable_async_tensor_parallel;
}
ActivationCheckpointing StrategyConfig::activation_checkpointing() const {
  return shared().activation_checkpointing;
}
std::optional<DType> StrategyConfig::autocast_dtype() const { return shared().autocast_dtype; }
bool StrategyConfig::moe_reshard_after_forward() const {
  return shared().moe.reshard_after_forward;
}
bool StrategyConfig::moe_wrap_outer_model() const { return shared().moe.wrap_outer_model; }
int64_t StrategyConfig::max_steps() const { return job().max_steps; }
int64_t StrategyConfig::checkpoint_every() const { return job().checkpoint_every; }
int64_t StrategyConfig::local_batch_size() const { return job().local_batch; }
int64_t StrategyConfig::global_batch_size() const { return job().global_batch; }
const std::string& StrategyConfig::optimizer() const { return job().optimizer; }
std::optional<DType> StrategyConfig::main_dtype() const { return job().main_dtype; }
double StrategyConfig::max_grad_norm() const { return job().max_grad_norm; }

SharedOptions read_shared_options(const Options& distributed, const Options& mp_policy,
                                  const Options& moe, const Options& moe_mp_policy,
                                  const Options& pipeline, const Options& context,
                                  Diagnostics& diagnostics) {
  SharedOptions out;
  if (std::optional<int64_t> dp = distributed.find_int("dp_size"); dp && *dp > 0) out.sizes.dp = dp;
  out.sizes.dp_replicate = at_least_one(distributed, "dp_replicate_size");
  out.sizes.tp = at_least_one(distributed, "tp_size");
  out.sizes.cp = at_least_one(distributed, "cp_size");
  out.sizes.pp = at_least_one(distributed, "pp_size");
  out.sizes.ep = at_least_one(distributed, "ep_size");
  out.sequence_parallel = distributed.get_bool("sequence_parallel");
  out.tp_plan = read_tp_plan(distributed);
  try {
    out.activation_checkpointing =
        parse_activation_checkpointing(distributed.value("activation_checkpointing"));
    out.activation_checkpointing_scope =
        parse_checkpointing_scope(distributed.value("activation_checkpointing_scope"));
  } catch (Error& error) {
    diagnostics.add(error.at(distributed.origin(error.key().substr(error.key().rfind('.') + 1))));
  }
  out.autocast_dtype = distributed.find_dtype("autocast_dtype");
  out.enable_async_tensor_parallel = distributed.get_bool("enable_async_tensor_parallel");
  out.mp = read_precision(mp_policy, MixedPrecision{}, {});

  out.moe_given = any_given(moe) || any_given(moe_mp_policy);
  // "auto" is all_to_all until a plan knows better.
  if (moe.get_string("dispatcher") == "all_gather")
    out.moe.dispatcher = TokenDispatcher::all_gather;
  out.moe.ignore_router_for_ac = moe.get_bool("ignore_router_for_ac");
  out.moe.reshard_after_forward = moe.get_bool("reshard_after_forward");
  out.moe.lm_head_precision = moe.find_dtype("lm_head_precision");
  out.moe.wrap_outer_model = moe.get_bool("wrap_outer_model");
  out.moe.fake_balanced_gate = moe.get_bool("fake_balanced_gate");
  if (any_given(moe_mp_policy))
    out.moe.mp_policy = read_precision(moe_mp_policy, out.mp, mp_policy.find_dtype("output_dtype"));

  out.context = read_context(context);
  if (any_given(context) && out.sizes.cp <= 1)
    diagnostics.warning("[distributed.context] has no effect with cp_size = " +
                        std::to_string(out.sizes.cp) + "; it is left out");
  out.pipeline_given = any_given(pipeline);
  out.pipeline = read_pipeline(pipeline);
  if (out.pipeline_given && out.sizes.pp <= 1)
    diagnostics.warning("[distributed.pipeline] has no effect with pp_size = " +
                        std::to_string(out.sizes.pp) + "; it is left out");
  if (out.sizes.pp > 1) {
    // The experts' policy may have another output; what is not written follows the model's.
    const DType crossing = out.pipeline.dtype.value_or(out.mp.output);
    if (dtype_size(crossing) < dtype_size(out.mp.param))
      diagnostics.warning(
          "hidden states cross the stages of the pipeline in " + std::string(dtype_name(crossing)) +
          ", narrower than distributed.mp_policy.param_dtype = \"" +
          std::string(dtype_name(out.mp.param)) + "\": set distributed.pipeline.dtype = \"" +
          std::string(dtype_name(out.mp.param)) + "\" to lose no digits");
    else if (crossing != out.mp.output)
      diagnostics.warning("distributed.pipeline.dtype = \"" + std::string(dtype_name(crossing)) +
                          "\" differs from distributed.mp_policy.output_dtype = \"" +
                          std::string(dtype_name(out.mp.output)) + "\"; it is kept");
  }
  return out;
}

SharedOptions read_shared_options(const Options& distributed, Diagnostics& diagnostics) {
  return read_shared_options(distributed, Options(mp_policy_schema()), Options(moe_schema()),
                             Options(moe_mp_policy_schema()), Options(pipeline_schema()),
                             Options(context_schema()), diagnostics);
}

std::vector<std::string> parse_checkpointing_scope(const OptionValue& value) {
  const std::string key = "distributed.activation_checkpointing_scope";
  std::vector<std::string> parts;
  auto add = [&](const std::string& text) {
    std::string all = text::normal(text);
    std::replace(all.begin(), all.end(), '+', ',');
    for (std::string_view part : text::split(all, ',')) {
      std::string name(text::trim(part));
      if (name.empty()) continue;
      if (name == "default" || name == "auto") name = "all";
      if (std::find(parts.begin(), parts.end(), name) == parts.end()) parts.push_back(name);
    }
  };
  if (const auto* text = std::get_if<std::string>(&value)) {
    add(*text);
  } else if (const auto* list = std::get_if<std::vector<std::string>>(&value)) {
    for (const std::string& item : *list) add(item);
  } else if (value.index() != 0) {
    throw Error(ErrorCode::wrong_type,
                key + " wants a string or a list of strings, found " + to_toml(value))
        .key(key)
        .help("set " + key + " = \"all\"");
  }
  const std::vector<std::string> known = {"all", "language", "vision", "audio", "multimodal"};
  for (const std::string& part : parts)
    if (std::find(known.begin(), known.end(), part) == known.end()) {
      Error error(ErrorCode::bad_choice,
                  key + ": \"" + part + "\" is not one of " + text::join(known, ", "));
      throw error.key(key)
          .help("set " + key + " = \"all\"")
          .help("set " + key + " = \"language+vision\"");
    }
  if (parts.size() > 1 && std::find(parts.begin(), parts.end(), "all") != parts.end())
    throw Error(ErrorCode::bad_choice, key + ": \"all\" stands beside another part")
        .key(key)
        .help("set " + key + " = \"all\"");
  if (parts.empty()) parts = {"all"};
  return parts;
}

ActivationCheckpointing parse_activation_checkpointing(const OptionValue& value) {
  const std::string key = "distributed.activation_checkpointing";
  if (value.index() == 0) return ActivationCheckpointing::none;
  if (const bool* on = std::get_if<bool>(&value))
    return *on ? ActivationCheckpointing::full : ActivationCheckpointing::none;
  if (const auto* text = std::get_if<std::string>(&value)) {
    std::string word = text::normal(*text);
    for (const char* off : {"none", "false", "off", "disabled", "no"})
      if (word == off) return ActivationCheckpointing::none;
    for (const char* full : {"full", "true", "on", "enabled", "yes"})
      if (word == full) return ActivationCheckpointing::full;
    if (word == "selective") return ActivationCheckpointing::selective;
  }
  throw Error(ErrorCode::bad_choice,
              key + " = " + to_toml(value) + ", but it must be none, full or selective")
      .key(key)
      .help("set " + key + " = \"none\"")
      .help("set " + key + " = \"full\"")
      .help("set " + key + " = \"selective\"");
}

}  // namespace meshwright
