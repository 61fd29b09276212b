#include "tests/support/matrix.h"

#include <algorithm>
#include <fstream>

#include "apps/prove/shrink.h"
#include "engine/config/source.h"
#include "engine/job/plan.h"
#include "engine/job/trainable.h"
#include "engine/train/run/tests/small_models.h"
#include "sdk/base/words.h"

namespace meshwright::support {

namespace {

Value level(int n) {
  return {"zero " + std::to_string(n),
          {R"(distributed.strategy = "megatron_fsdp")",
           "distributed.megatron_fsdp.zero_dp_strategy = " + std::to_string(n)}};
}
Value staged(const std::string& name) {
  return {
      name, {"distributed.pp_size = 2", "distributed.pipeline.pp_schedule = \"" + name + "\""}, 2};
}
Value cut(const std::string& name, int64_t ranks, const std::vector<std::string>& more = {}) {
  std::vector<std::string> toml = {"distributed.tp_size = " + std::to_string(ranks)};
  toml.insert(toml.end(), more.begin(), more.end());
  return {name, toml, ranks};
}
Value divided(const std::string& name, int64_t ranks, const std::string& method,
              const std::vector<std::string>& more = {}) {
  std::vector<std::string> toml = {"distributed.cp_size = " + std::to_string(ranks),
                                   "distributed.context.method = \"" + method + "\""};
  toml.insert(toml.end(), more.begin(), more.end());
  return {name, toml, ranks};
}
Value own(const std::string& name, const std::string& table, const std::string& toml,
          const std::vector<std::string>& of) {
  return {name, {"distributed." + table + "." + toml}, 1, of};
}

const std::vector<std::string> kFsdp2 = {"fsdp2", "hsdp"},
                               kMegatron = {"zero 3", "zero 0", "zero 1", "zero 2"},
                               kExperts = {"mixtral", "qwen3_moe"};
const std::string kSequence = "distributed.sequence_parallel = true";
const std::string kPolicy = "distributed.mp_policy.";

std::vector<std::string> computed_in(const std::string& name) {
  return {kPolicy + "param_dtype = \"" + name + "\"", kPolicy + "output_dtype = \"" + name + "\""};
}

// Fields of config.json that the families have beside the sizes.
struct Family {
  const char *name, *architecture, *model_type, *more;
};
constexpr Family kFamilies[] = {
    {"llama", "LlamaForCausalLM", "llama", ""},
    {"mistral", "MistralForCausalLM", "mistral", R"(, "sliding_window": 6)"},
    {"qwen2", "Qwen2ForCausalLM", "qwen2", ""},
    {"qwen3", "Qwen3ForCausalLM", "qwen3", ""},
    {"gemma3", "Gemma3ForCausalLM", "gemma3_text",
     R"(, "sliding_window": 6, "rope_local_base_freq": 100.0, "final_logit_softcapping": 8.0,
"layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention",
"sliding_attention", "full_attention", "sliding_attention", "full_attention"])"},
    {"mixtral", "MixtralForCausalLM", "mixtral",
     R"(, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": null)"},
    {"qwen3_moe", "Qwen3MoeForCausalLM", "qwen3_moe",
     R"(, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
"norm_topk_prob": true, "mlp_only_layers": [1])"},
    {"phi3", "Phi3ForCausalLM", "phi3", R"(, "pad_token_id": 60, "sliding_window": 6)"},
    {"phi", "PhiForCausalLM", "phi", R"(, "partial_rotary_factor": 0.5)"}};

std::vector<Value> families() {
  std::vector<Value> out;
  for (const Family& one : kFamilies) out.push_back({one.name});
  return out;
}

size_t place(Factor f, const std::string& name) {
  const std::vector<Value>& values = columns()[f].values;
  return static_cast<size_t>(std::ranges::find(values, name, &Value::name) - values.begin());
}

bool has_experts(const CoveringRow& row) {
  return std::ranges::find(kExperts, value(row, family).name) != kExperts.end();
}

}  // namespace

const std::vector<Column>& columns() {
  static const std::vector<Column> all = {
      {"strategy",
       "Strategies",
       false,
       {{"fsdp2", {"distributed.strategy = \"fsdp2\""}},
        {"hsdp", {"distributed.strategy = \"fsdp2\"", "distributed.dp_replicate_size = 2"}, 2},
        {"ddp", {"distributed.strategy = \"ddp\""}},
        level(3),
        level(2),
        level(1),
        level(0),
        {"moe_ep", {"distributed.strategy = \"moe_ep\""}}}},
      {"family", "Families", false, families()},
      {"pp",
       "Pipelines",
       true,
       {{"none"},
        staged("GPipe"),
        staged("1F1B"),
        staged("LoopedBFS"),
        staged("Interleaved1F1B"),
        staged("InterleavedZeroBubble"),
        staged("ZBVZeroBubble"),
        staged("DualPipeV")}},
      {"tp",
       "Tensor parallelism",
       true,
       {{"none"},
        cut("2", 2),
        cut("2 logits gathered", 2, {"distributed.tp_plan = \"base\""}),
        cut("2 own plan", 2,
            {"distributed.tp_plan = {\"model.layers.*.self_attn.[qkv]_proj\" = \"colwise\", "
             "\"model.layers.*.self_attn.o_proj\" = \"rowwise\"}"}),
        cut("2 sequence", 2, {kSequence}),
        cut("2 sequence async", 2, {kSequence, "distributed.enable_async_tensor_parallel = true"}),
        cut("4", 4)}},
      {"cp",
       "Context parallelism",
       true,
       {{"none"},
        divided("all_gather", 2, "all_gather"),
        divided("ring", 2, "ring"),
        divided("ring in order", 2, "ring", {"distributed.context.load_balancer = \"none\""}),
        divided("ulysses", 2, "ulysses"),
        divided("ring x ulysses", 4, "ring", {"distributed.context.ulysses_size = 2"})}},
      {"ep",
       "Experts",
       true,
       {{"none"},
        {"all_to_all", {"distributed.ep_size = 2", "distributed.moe.dispatcher = \"all_to_all\""}},
        {"all_gather",
         {"distributed.ep_size = 2", "distributed.moe.dispatcher = \"all_gather\""}}}},
      {"dp", "Ranks of data", false, {{"2 shards", {}, 2}, {"1 shard"}, {"3 shards", {}, 3}}},
      {"dtype",
       "Dtypes",
       false,
       {{"bfloat16", computed_in("bfloat16")},
        {"float32", computed_in("float32")},
        {"float16", computed_in("float16")},
        {"bfloat16 weights",
         {"model.torch_dtype = \"bfloat16\"", "optimizer.main_dtype = \"float32\""}},
        {"reduced in bfloat16", {kPolicy + "reduce_dtype = \"bfloat16\""}},
        {"autocast",
         {"distributed.autocast_dtype = \"bfloat16\"", kPolicy + "param_dtype = \"float32\""}},
        {"float8",
         {"model.float8_linear = true"},
         1,
         {},
         "products of 8-bit floats are those of devices"}}},
      {"recompute",
       "Recomputation",
       true,
       {{"none"},
        {"full", {"distributed.activation_checkpointing = \"full\""}},
        {"selective", {"distributed.activation_checkpointing = \"selective\""}}}},
      {"trains",
       "What trains",
       false,
       {{"all"},
        {"adapters", {"lora.r = 4"}},
        {"adapters and a part",
         {"lora.r = 4", "optimizer.group = [{pattern = \"model.layers.1.*\", frozen = false}]"}},
        {"frozen layers", {"optimizer.group = [{pattern = \"model.layers.0.*\", frozen = true}]"}},
        {"adapters with dropout",
         {"lora.r = 4", "lora.dropout = 0.1"},
         1,
         {},
         "dropout is set to 0, since one process draws other numbers"}}},
      {"samples",
       "Samples",
       false,
       {{"streams", {"dataset.kind = \"mock\""}},
        {"packed documents",
         {"dataset.plugin = \"jsonl\"",
          "dataset.path = \"" MESHWRIGHT_SOURCE_DIR "/configs/chats/chats.jsonl\"",
          "dataset.jsonl.tokenizer = \"" MESHWRIGHT_SOURCE_DIR "/configs/models/chat-tiny\""}}}},
      {"optimizer",
       "Optimizers",
       false,
       {{"adamw clipped"},
        {"sgd", {"optimizer.name = \"sgd\"", "optimizer.momentum = 0.9"}},
        {"adamw not clipped",
         {"optimizer.max_grad_norm = \"none\"", "optimizer.no_decay = \"norms_and_biases\""}}}},
      {"model",
       "Models",
       false,
       {{"own head"},
        {"tied embeddings"},
        {"one key-value head"},
        {"balance loss", {}, 1, kExperts},
        {"attention dropout",
         {},
         1,
         {},
         "dropout is set to 0, since one process draws other numbers"}}},
      {"option",
       "Options",
       true,
       {{"none"},
        own("offload", "fsdp2", "offload_policy = \"cpu\"", kFsdp2),
        own("gathered again", "fsdp2", "reshard_after_forward = true", kFsdp2),
        own("gathered once", "fsdp2", "reshard_after_forward = false", kFsdp2),
        own("prefetch", "fsdp2", "enable_fsdp2_prefetch = true", kFsdp2),
        own("reduced each micro-batch", "fsdp2", "defer_fsdp_grad_sync = false", kFsdp2),
        own("float32 gradients", "megatron_fsdp", "grad_reduce_in_fp32 = true", kMegatron),
        own("float32 main weights", "megatron_fsdp", "preserve_fp32_weights = true", kMegatron),
        own("double buffer", "megatron_fsdp", "fsdp_double_buffer = true", kMegatron),
        own("per-token loss", "megatron_fsdp", "calculate_per_token_loss = true", kMegatron),
        own("average in collective", "megatron_fsdp", "average_in_collective = true", kMegatron),
        own("own gradients", "ddp", "gradient_as_bucket_view = false", {"ddp"}),
        own("static graph", "ddp", "static_graph = true", {"ddp"}),
        {"layer graphs", {"dist_env.cuda_graphs = true"}, 1, {}, "graphs are those of devices"}}}};
  return all;
}

std::string text_of(const CoveringRow& row) {
  std::vector<std::string> out;
  for (size_t f = 0; f < kFactors; ++f)
    if (row[f] != 0) out.push_back(columns()[f].name + ": " + columns()[f].values[row[f]].name);
  return out.empty() ? "plain" : text::join(out, ", ");
}

std::optional<CoveringRow> row_of(const std::string& text) {
  CoveringRow out(kFactors);
  if (text == "plain") return out;
  for (const std::string& part : text::split(text, ',')) {
    const std::string one(text::trim(part));
    const size_t colon = std::min(one.find(": "), one.size());
    const auto column = std::ranges::find(columns(), one.substr(0, colon), &Column::name);
    if (column == columns().end() || colon == one.size()) return std::nullopt;
    const auto found = std::ranges::find(column->values, one.substr(colon + 2), &Value::name);
    if (found == column->values.end()) return std::nullopt;
    out[static_cast<size_t>(column - columns().begin())] =
        static_cast<size_t>(found - column->values.begin());
  }
  return out;
}

int64_t ranks_of(const CoveringRow& row) {
  int64_t out = 1;
  for (size_t f = 0; f < kFactors; ++f) out *= columns()[f].values[row[f]].ranks;
  return out;
}

bool is_asked(const CoveringPair& pair) {
  const Value &one = columns()[pair[0]].values[pair[1]],
              &other = columns()[pair[2]].values[pair[3]];
  auto allows = [](const Value& value, const std::string& name) {
    return value.of.empty() || std::ranges::find(value.of, name) != value.of.end();
  };
  if (pair[2] == option && pair[0] == strategy) return allows(other, one.name);
  if (pair[2] == model && pair[0] == family) return allows(other, one.name);
  return true;
}

bool is_provable(const CoveringRow& row) {
  for (size_t f = 0; f < kFactors; ++f)
    if (!columns()[f].values[row[f]].unproven.empty()) return false;
  return true;
}

void bring(CoveringRow& row, const CoveringPair& wanted) {
  auto free = [&](Factor f) { return wanted[0] != f && wanted[2] != f && row[f] == 0; };
  if (const Value& own = value(row, option); !own.of.empty() && free(strategy))
    row[strategy] = place(strategy, own.of.front());
  if (value(row, option).name == "layer graphs" && free(strategy))
    row[strategy] = place(strategy, "zero 0");  // whose parameters stay where they are
  const bool of_experts =
      value(row, strategy).name == "moe_ep" || row[ep] != 0 || value(row, model).of == kExperts;
  if (of_experts && free(family)) row[family] = place(family, kExperts.front());
  if (value(row, strategy).name == "moe_ep" && free(ep) && has_experts(row)) row[ep] = 1;
}

CoveringRow plain_row(const CoveringPair& pair) {
  CoveringRow out(kFactors);
  out[pair[0]] = pair[1], out[pair[2]] = pair[3];
  bring(out, pair);
  return out;
}

std::vector<CoveringPair> asked_pairs() {
  std::vector<CoveringPair> out;
  for (size_t f = 0; f < kFactors; ++f)
    for (size_t g = f + 1; g < kFactors; ++g)
      for (size_t v = 0; v < columns()[f].values.size(); ++v)
        for (size_t w = 0; w < columns()[g].values.size(); ++w)
          if (const CoveringPair pair{f, v, g, w}; is_asked(pair)) out.push_back(pair);
  return out;
}

std::filesystem::path write_job(const CoveringRow& row, const std::filesystem::path& folder) {
  const Family& of = kFamilies[row[family]];
  const std::string& kind = value(row, model).name;
  std::string more = std::string(of.more) + R"(, "num_hidden_layers": 8, "intermediate_size": 96)";
  more += R"(, "tie_word_embeddings": )";
  more += kind == "tied embeddings" ? "true" : "false";
  if (kind == "balance loss")
    more += R"(, "output_router_logits": true, "router_aux_loss_coef": 0.02)";
  if (kind == "attention dropout") more += R"(, "attention_dropout": 0.1)";
  const std::string file =
      write_model(folder, {of.name, of.architecture, of.model_type, 256, 16,
                           kind == "one key-value head" ? 1 : 8, 64, more.c_str()});
  const int64_t replicas = value(row, strategy).name == "hsdp" ? 2 : 1;
  std::string text =
      "schema = 1\nmodel.config = \"" + file +
      "\"\ndist_env.device = \"cpu\"\ndataset.seq_len = 48\nstep_scheduler.local_batch_size = 2\n"
      "step_scheduler.global_batch_size = " +
      std::to_string(16 * replicas * value(row, dp).ranks) + "\n";
  for (size_t f = 0; f < kFactors; ++f)
    for (const std::string& line : columns()[f].values[row[f]].toml) text += line + "\n";
  const std::filesystem::path out = folder / "job.toml";
  std::ofstream(out) << text;
  return out;
}

std::optional<Error> refusal_of(const CoveringRow& row, const std::filesystem::path& folder) {
  config::LoadOptions options;
  options.file = write_job(row, folder);
  try {
    Diagnostics found;
    std::optional<plan::Job> job = plan::load_job(options, found);
    found.throw_if_any();
    const plan::JobPlan plan = plan::make_plan(*job, {.world_size = ranks_of(row)});
    // A stage may have modules that rank 0's has none of.
    const int64_t stages = job->config.shared.sizes.pp, ranks = ranks_of(row);
    for (int64_t stage = 1; stage < stages; ++stage)
      plan::make_plan(*job, {.world_size = ranks, .rank = ranks / stages * stage});
    const std::vector<Error> errors = plan::errors_of_training(*job, &plan);
    if (!errors.empty()) return errors.front();
    prove::shrink(*job, ranks_of(row));
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

}  // namespace meshwright::support
