#include "engine/models/decoder_family.h"

#include <algorithm>
#include <numeric>

#include "engine/models/models.h"
#include "meshwright/error.h"

namespace meshwright::outlines {

namespace {

// What the classes of one architecture have that others have not.
struct Variant {
  const char *architecture, *model_type, *class_prefix;
  DecoderDefaults defaults;
  bool qkv_bias_always = false, qk_norms = false;
  bool has_attention_bias = false, has_mlp_bias = false;  // the field exists in its configuration
  bool fused = false, four_norms = false, beside = false;
};

constexpr Variant kVariants[] = {
    {.architecture = "LlamaForCausalLM",
     .model_type = "llama",
     .class_prefix = "Llama",
     .defaults = {32000, 4096, 11008, 32, 32, 0, 0, false},
     .has_attention_bias = true,
     .has_mlp_bias = true},
    {.architecture = "MistralForCausalLM",
     .model_type = "mistral",
     .class_prefix = "Mistral",
     .defaults = {32000, 4096, 14336, 32, 32, 8, 0, false}},
    {.architecture = "Qwen2ForCausalLM",
     .model_type = "qwen2",
     .class_prefix = "Qwen2",
     .defaults = {151936, 4096, 22016, 32, 32, 32, 0, false},
     .qkv_bias_always = true},
    {.architecture = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .class_prefix = "Qwen3",
     .defaults = {151936, 4096, 22016, 32, 32, 32, 128, false},
     .qk_norms = true,
     .has_attention_bias = true},
    {.architecture = "Gemma3ForCausalLM",
     .model_type = "gemma3_text",
     .class_prefix = "Gemma3",
     .defaults = {262208, 2304, 9216, 26, 8, 4, 256, true},
     .qk_norms = true,
     .has_attention_bias = true,
     .four_norms = true},
    {.architecture = "MixtralForCausalLM",
     .model_type = "mixtral",
     .class_prefix = "Mixtral",
     .defaults = {32000, 4096, 14336, 32, 32, 8, 0, false}},
    {.architecture = "Qwen3MoeForCausalLM",
     .model_type = "qwen3_moe",
     .class_prefix = "Qwen3Moe",
     .defaults = {151936, 2048, 6144, 24, 32, 4, 0, false},
     .qk_norms = true,
     .has_attention_bias = true},
    {.architecture = "Phi3ForCausalLM",
     .model_type = "phi3",
     .class_prefix = "Phi3",
     .defaults = {32064, 3072, 8192, 32, 32, 0, 0, false},
     .fused = true},
    {.architecture = "PhiForCausalLM",
     .model_type = "phi",
     .class_prefix = "Phi",
     .defaults = {51200, 2048, 8192, 24, 32, 0, 0, false},
     .qkv_bias_always = true,
     .beside = true},
};

}  // namespace

DecoderFamily read_decoder_family(const ConfigJson& config) {
  std::vector<std::string> names = config.strings("architectures");
  const Variant* v = &kVariants[0];
  for (const Variant& candidate : kVariants)
    if ((!names.empty() && names[0] == candidate.architecture) ||
        (names.empty() && config.string("model_type", "") == candidate.model_type))
      v = &candidate;
  bool bias = v->has_attention_bias && config.boolean("attention_bias", false);
  DecoderFamily family;
  family.architecture = v->architecture;
  family.model_type = v->model_type;
  family.class_prefix = v->class_prefix;
  family.sizes = read_decoder_sizes(config, v->defaults);
  family.attention = {v->qkv_bias_always || bias, bias, v->qk_norms, "o_proj"};
  family.mlp_bias = v->has_mlp_bias && config.boolean("mlp_bias", false);
  family.fused = v->fused;
  if (family.fused && family.sizes.kv_heads > weights::kMostFusedGroups)
    throw Error(ErrorCode::bad_model_config,
                config.name() + ": num_key_value_heads = " + std::to_string(family.sizes.kv_heads) +
                    " is more than the " + std::to_string(weights::kMostFusedGroups) +
                    " that a fused weight can have")
        .key("model.config");
  family.four_norms = v->four_norms;
  family.beside = v->beside;
  if (family.beside)
    family.attention = {true, true, config.boolean("qk_layernorm", false), "dense"};
  family.moe = read_moe_family(config, family.model_type, family.sizes);
  return family;
}

FusedRows qkv_rows(const DecoderSizes& s) {
  return {s.kv_heads, {s.heads / s.kv_heads * s.head_dim, s.head_dim, s.head_dim}};
}

FusedRows gate_up_rows(const DecoderSizes& s) {
  int64_t groups = std::gcd(s.intermediate, s.kv_heads);
  return {groups, {s.intermediate / groups, s.intermediate / groups}};
}

ModelOutline llama_family(const ConfigJson& config, DType storage) {
  DecoderFamily family = read_decoder_family(config);
  const DecoderSizes& s = family.sizes;
  const std::string& prefix = family.class_prefix;
  OutlineBuilder b = begin_decoder(family.architecture, family.model_type, prefix, s, storage);
  for (int64_t i = 0; i < s.layers; ++i) {
    std::string layer = "model.layers." + std::to_string(i);
    b.module(layer, ModuleKind::layer, prefix + "DecoderLayer");
    attention(b, layer, prefix, s, family.attention);
    gated_mlp(b, layer + ".mlp", prefix, s.hidden, s.intermediate, family.mlp_bias);
    b.norm(layer + ".input_layernorm", s.hidden, prefix + "RMSNorm");
    b.norm(layer + ".post_attention_layernorm", s.hidden, prefix + "RMSNorm");
  }
  end_decoder(b, prefix, s);
  own_plan(b.outline, gated_mlp_plan(attention_plan(family.attention.qk_norms)));
  return std::move(b.outline);
}

ModelOutline gemma3(const ConfigJson& config, DType storage) {
  DecoderFamily family = read_decoder_family(config);
  const DecoderSizes& s = family.sizes;
  OutlineBuilder b = begin_decoder("Gemma3ForCausalLM", "gemma3_text", "Gemma3Text", s, storage,
                                   "Gemma3TextScaledWordEmbedding");
  for (int64_t i = 0; i < s.layers; ++i) {
    std::string layer = "model.layers." + std::to_string(i);
    b.module(layer, ModuleKind::layer, "Gemma3DecoderLayer");
    attention(b, layer, "Gemma3", s, family.attention);
    gated_mlp(b, layer + ".mlp", "Gemma3", s.hidden, s.intermediate, false, "GELUTanh");
    for (const char* norm : {"input_layernorm", "post_attention_layernorm",
                             "pre_feedforward_layernorm", "post_feedforward_layernorm"})
      b.norm(layer + "." + norm, s.hidden, "Gemma3RMSNorm");
  }
  end_decoder(b, "Gemma3", s);
  own_plan(b.outline, gated_mlp_plan(attention_plan(true)));
  return std::move(b.outline);
}

// Mixture-of-experts families. Experts are grouped tensors, input-major (semantics 10.1);
// engine/checkpoint/weights/read_region.h translates at the border.

namespace {

constexpr int64_t kMaxExperts = 1 << 16;

MoeOutline read_moe(const ConfigJson& config, int64_t experts, int64_t active, int64_t width) {
  if (active > experts)
    throw Error(ErrorCode::bad_model_config,
                config.name() + ": num_experts_per_tok = " + std::to_string(active) +
                    " is more than the " + std::to_string(experts) + " experts")
        .key("model.config");
  return {experts, active, width, 0};
}

void experts(OutlineBuilder& b, const std::string& mlp, const std::string& class_prefix,
             const MoeOutline& moe, int64_t hidden) {
  b.module(mlp + ".experts", ModuleKind::experts, class_prefix + "Experts");
  b.parameter(mlp + ".experts.gate_and_up_projs", {moe.experts, hidden, 2 * moe.intermediate_size});
  b.parameter(mlp + ".experts.down_projs", {moe.experts, moe.intermediate_size, hidden});
}

void router(OutlineBuilder& b, const std::string& mlp, const std::string& class_prefix,
            const MoeOutline& moe, int64_t hidden) {
  b.module(mlp + ".gate", ModuleKind::router, class_prefix + "TopKRouter");
  b.parameter(mlp + ".gate.weight", {moe.experts, hidden});
}

void moe_block(OutlineBuilder& b, const std::string& mlp, const std::string& class_prefix,
               const MoeFamily& moe, int64_t hidden) {
  b.module(mlp, ModuleKind::other, class_prefix + "SparseMoeBlock");
  if (moe.experts_first) experts(b, mlp, class_prefix, moe.sizes, hidden);
  router(b, mlp, class_prefix, moe.sizes, hidden);
  if (!moe.experts_first) experts(b, mlp, class_prefix, moe.sizes, hidden);
}

}  // namespace

std::optional<MoeFamily> read_moe_family(const ConfigJson& config, const std::string& model_type,
                                         const DecoderSizes& s) {
  MoeFamily out;
  if (model_type == "mixtral") {
    out.sizes = read_moe(config, config.integer("num_local_experts", 1, kMaxExperts, 8),
                         config.integer("num_experts_per_tok", 1, kMaxExperts, 2), s.intermediate);
    out.sparse.assign(static_cast<size_t>(s.layers), true);
    return out;
  }
  if (model_type != "qwen3_moe") return std::nullopt;
  int64_t count = config.integer(config.has("num_experts") ? "num_experts" : "num_local_experts", 0,
                                 kMaxExperts, 128);
  if (count > 0)
    out.sizes = read_moe(config, count, config.integer("num_experts_per_tok", 1, kMaxExperts, 8),
                         config.integer("moe_intermediate_size", 1, kMaxWidth, 768));
  int64_t every = config.integer("decoder_sparse_step", 1, 4096, 1);
  std::vector<int64_t> dense = config.integers("mlp_only_layers", 0, 4095);
  for (int64_t i = 0; i < s.layers; ++i)
    out.sparse.push_back(count > 0 && (i + 1) % every == 0 &&
                         std::find(dense.begin(), dense.end(), i) == dense.end());
  out.experts_first = true;
  if (std::find(out.sparse.begin(), out.sparse.end(), true) == out.sparse.end())
    return std::nullopt;
  return out;
}

ModelOutline moe_family(const ConfigJson& config, DType storage) {
  DecoderFamily family = read_decoder_family(config);
  const DecoderSizes& s = family.sizes;
  const std::string& prefix = family.class_prefix;
  OutlineBuilder b = begin_decoder(family.architecture, family.model_type, prefix, s, storage);
  if (family.moe) b.outline.moe = family.moe->sizes;
  for (int64_t i = 0; i < s.layers; ++i) {
    std::string layer = "model.layers." + std::to_string(i);
    b.module(layer, ModuleKind::layer, prefix + "DecoderLayer");
    attention(b, layer, prefix, s, family.attention);
    if (family.moe && family.moe->sparse[static_cast<size_t>(i)])
      moe_block(b, layer + ".mlp", prefix, *family.moe, s.hidden);
    else
      gated_mlp(b, layer + ".mlp", prefix, s.hidden, s.intermediate, family.mlp_bias);
    b.norm(layer + ".input_layernorm", s.hidden, prefix + "RMSNorm");
    b.norm(layer + ".post_attention_layernorm", s.hidden, prefix + "RMSNorm");
  }
  end_decoder(b, prefix, s);
  // What transformers says of experts is left out: they are divided by ep_size.
  PlanRows rows = attention_plan(family.attention.qk_norms);
  own_plan(b.outline, family.model_type == "mixtral" ? rows : gated_mlp_plan(rows));
  return std::move(b.outline);
}

ModelOutline phi(const ConfigJson& config, DType storage) {
  DecoderFamily family = read_decoder_family(config);
  const DecoderSizes& s = family.sizes;
  OutlineBuilder b = begin_decoder("PhiForCausalLM", "phi", "Phi", s, storage);
  bool qk_norms = family.attention.qk_norms;
  // The norms are hidden_size / num_attention_heads wide, rounded down, whatever head_dim says:
  // else the model cannot run.
  if (int64_t width = s.hidden / s.heads; qk_norms && s.head_dim != width) {
    Error error(ErrorCode::bad_model_config,
                config.name() +
                    ": qk_layernorm needs head_dim = hidden_size / num_attention_heads = " +
                    std::to_string(s.hidden) + " / " + std::to_string(s.heads) + " = " +
                    std::to_string(width) + ", found head_dim = " + std::to_string(s.head_dim));
    if (width > 0) error.help("set \"head_dim\": " + std::to_string(width));
    throw error.key("model.config").help("set \"qk_layernorm\": false");
  }
  for (int64_t i = 0; i < s.layers; ++i) {
    std::string layer = "model.layers." + std::to_string(i);
    b.module(layer, ModuleKind::layer, "PhiDecoderLayer");
    attention(b, layer, "Phi", s, {true, true, false, "dense"});
    if (qk_norms) {
      b.norm(layer + ".self_attn.q_layernorm", s.head_dim, "LayerNorm", true);
      b.norm(layer + ".self_attn.k_layernorm", s.head_dim, "LayerNorm", true);
    }
    b.module(layer + ".mlp", ModuleKind::other, "PhiMLP");
    b.module(layer + ".mlp.activation_fn", ModuleKind::other, "NewGELUActivation");
    b.linear(layer + ".mlp.fc1", s.hidden, s.intermediate, true);
    b.linear(layer + ".mlp.fc2", s.intermediate, s.hidden, true);
    b.norm(layer + ".input_layernorm", s.hidden, "LayerNorm", true);
    b.module(layer + ".resid_dropout", ModuleKind::other, "Dropout");
  }
  b.module("model.rotary_emb", ModuleKind::rotary, "PhiRotaryEmbedding");
  b.module("model.embed_dropout", ModuleKind::other, "Dropout");
  b.norm("model.final_layernorm", s.hidden, "LayerNorm", true);
  b.module("lm_head", ModuleKind::linear, "Linear");
  if (!s.tied) b.parameter("lm_head.weight", {s.vocab, s.hidden});
  b.parameter("lm_head.bias", {s.vocab});
  PlanRows rows = {
      {"layers.*.self_attn.q_proj", "colwise"}, {"layers.*.self_attn.k_proj", "colwise"},
      {"layers.*.self_attn.v_proj", "colwise"}, {"layers.*.self_attn.dense", "rowwise"},
      {"layers.*.mlp.fc1", "colwise"},          {"layers.*.mlp.fc2", "rowwise"}};
  if (qk_norms)  // theirs has no word for them
    for (const char* norm : {"layers.*.self_attn.q_layernorm", "layers.*.self_attn.k_layernorm"})
      rows.emplace_back(norm, "replicated_with_grad_allreduce");
  own_plan(b.outline, rows);
  return std::move(b.outline);
}

ModelOutline phi3(const ConfigJson& config, DType storage) {
  DecoderSizes s = read_decoder_family(config).sizes;
  OutlineBuilder b = begin_decoder("Phi3ForCausalLM", "phi3", "Phi3", s, storage);
  for (int64_t i = 0; i < s.layers; ++i) {
    std::string layer = "model.layers." + std::to_string(i);
    b.module(layer, ModuleKind::layer, "Phi3DecoderLayer");
    b.module(layer + ".self_attn", ModuleKind::other, "Phi3Attention");
    b.linear(layer + ".self_attn.o_proj", s.heads * s.head_dim, s.hidden);
    b.fused_linear(layer + ".self_attn.qkv_proj", s.hidden, qkv_rows(s));
    b.module(layer + ".mlp", ModuleKind::other, "Phi3MLP");
    b.fused_linear(layer + ".mlp.gate_up_proj", s.hidden, gate_up_rows(s));
    b.linear(layer + ".mlp.down_proj", s.intermediate, s.hidden);
    b.module(layer + ".mlp.activation_fn", ModuleKind::other, "SiLUActivation");
    b.norm(layer + ".input_layernorm", s.hidden, "Phi3RMSNorm");
    b.norm(layer + ".post_attention_layernorm", s.hidden, "Phi3RMSNorm");
    b.module(layer + ".resid_attn_dropout", ModuleKind::other, "Dropout");
    b.module(layer + ".resid_mlp_dropout", ModuleKind::other, "Dropout");
  }
  end_decoder(b, "Phi3", s);
  own_plan(b.outline, {{"layers.*.self_attn.qkv_proj", "colwise_gather_output"},
                       {"layers.*.self_attn.o_proj", "rowwise_split_input"},
                       {"layers.*.mlp.gate_up_proj", "colwise_gather_output"},
                       {"layers.*.mlp.down_proj", "rowwise_split_input"}});
  return std::move(b.outline);
}

}  // namespace meshwright::outlines
