#include "engine/models/decoder_family.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "engine/models/models.h"
#include "meshwright/error.h"
#include "sdk/base/words.h"

namespace meshwright::outlines {

namespace {

// Far above any real model, far below what could overflow or exhaust memory.
constexpr int64_t kMaxWidth = int64_t{1} << 24, kMaxLayers = 4096,
                  kMaxVocabulary = int64_t{1} << 28, kMaxExperts = 1 << 16;

[[noreturn]] void refuse_sizes(const ConfigJson& config, const std::string& what) {
  throw Error(ErrorCode::bad_model_config, config.name() + ": " + what).key("model.config");
}

// Reads and checks the sizes: positive, bounded, heads a multiple of kv_heads, hidden a multiple of
// heads where head_dim follows from it.
DecoderSizes read_decoder_sizes(const ConfigJson& config, const DecoderDefaults& d) {
  DecoderSizes s;
  s.vocab = config.integer("vocab_size", 1, kMaxVocabulary, d.vocab);
  s.hidden = config.integer("hidden_size", 1, kMaxWidth, d.hidden);
  s.intermediate = config.integer("intermediate_size", 1, kMaxWidth, d.intermediate);
  s.layers = config.integer("num_hidden_layers", 1, kMaxLayers, d.layers);
  s.heads = config.integer("num_attention_heads", 1, kMaxWidth, d.heads);
  s.kv_heads =
      config.integer("num_key_value_heads", 1, kMaxWidth, d.kv_heads == 0 ? s.heads : d.kv_heads);
  s.tied = config.boolean("tie_word_embeddings", d.tied);
  if (s.heads % s.kv_heads != 0)
    refuse_sizes(config,
                 "num_attention_heads = " + std::to_string(s.heads) +
                     " is not a multiple of num_key_value_heads = " + std::to_string(s.kv_heads));
  if (config.has("head_dim") || d.head_dim != 0) {
    s.head_dim = config.integer("head_dim", 1, kMaxWidth,
                                d.head_dim == 0 ? std::nullopt : std::optional(d.head_dim));
  } else {
    if (s.hidden % s.heads != 0)
      refuse_sizes(config, "hidden_size = " + std::to_string(s.hidden) +
                               " is not a multiple of num_attention_heads = " +
                               std::to_string(s.heads) + ", and there is no head_dim");
    s.head_dim = s.hidden / s.heads;
  }
  return s;
}

MoeOutline read_moe(const ConfigJson& config, int64_t experts, int64_t active, int64_t width) {
  if (active > experts)
    refuse_sizes(config, "num_experts_per_tok = " + std::to_string(active) + " is more than the " +
                             std::to_string(experts) + " experts");
  return {experts, active, width, 0};
}

// How many experts, how wide, in which layers; nullopt where no layer has any.
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

// What an architecture is called without what all of them end with: those endings would make any
// two look alike.
std::string family_name(std::string_view architecture) {
  for (std::string_view end : {"ForCausalLM", "LMHeadModel", "ForConditionalGeneration"})
    if (architecture.ends_with(end) && architecture.size() > end.size())
      return std::string(architecture.substr(0, architecture.size() - end.size()));
  return std::string(architecture);
}

}  // namespace

DecoderFamily read_decoder_family(const ConfigJson& config) {
  const Variant& v = variant_of(config);
  const bool bias = v.has_attention_bias && config.boolean("attention_bias", false);
  DecoderFamily family{.architecture = v.architecture,
                       .model_type = v.model_type,
                       .class_prefix = family_name(v.architecture),
                       .sizes = read_decoder_sizes(config, v.defaults),
                       .attention = {v.qkv_bias_always || bias, bias, v.qk_norms},
                       .mlp_bias = v.has_mlp_bias && config.boolean("mlp_bias", false),
                       .fused = v.fused,
                       .four_norms = v.four_norms,
                       .beside = v.beside,
                       .moe = {}};
  const DecoderSizes& s = family.sizes;
  if (family.fused && s.kv_heads > weights::kMostFusedGroups)
    refuse_sizes(config, "num_key_value_heads = " + std::to_string(s.kv_heads) +
                             " is more than the " + std::to_string(weights::kMostFusedGroups) +
                             " that a fused weight can have");
  if (family.beside)
    family.attention = {true, true, config.boolean("qk_layernorm", false), "dense"};
  // The norms are hidden_size / num_attention_heads wide, rounded down, whatever head_dim says:
  // else the model cannot run.
  if (int64_t width = s.hidden / s.heads;
      family.beside && family.attention.qk_norms && s.head_dim != width) {
    Error error(ErrorCode::bad_model_config,
                config.name() +
                    ": qk_layernorm needs head_dim = hidden_size / num_attention_heads = " +
                    std::to_string(s.hidden) + " / " + std::to_string(s.heads) + " = " +
                    std::to_string(width) + ", found head_dim = " + std::to_string(s.head_dim));
    if (width > 0) error.help("set \"head_dim\": " + std::to_string(width));
    throw error.key("model.config").help("set \"qk_layernorm\": false");
  }
  family.moe = read_moe_family(config, family.model_type, s);
  return family;
}

FusedRows qkv_rows(const DecoderSizes& s) {
  return {s.kv_heads, {s.heads / s.kv_heads * s.head_dim, s.head_dim, s.head_dim}};
}

FusedRows gate_up_rows(const DecoderSizes& s) {
  int64_t groups = std::gcd(s.intermediate, s.kv_heads);
  return {groups, {s.intermediate / groups, s.intermediate / groups}};
}

namespace {

// The outlines, in the order in which the real models register their modules and parameters.

// Pairs of pattern and style, of the inner model ("layers.*.mlp.up_proj").
using PlanRows = std::vector<std::pair<const char*, const char*>>;

void own_plan(ModelOutline& outline, const PlanRows& inner) {
  outline.own_tp_plan.emplace_back("lm_head", "colwise_gather_output");
  bool embedding = false;
  for (const auto& [pattern, style] : inner) {
    embedding = embedding || std::string_view(pattern) == "embed_tokens";
    outline.own_tp_plan.emplace_back(outline.inner_prefix + "." + pattern, style);
  }
  // The head's weight is the embedding's: splitting one splits the other.
  if (outline.tied_embeddings && !embedding)
    outline.own_tp_plan.emplace_back(outline.inner_prefix + ".embed_tokens", "embedding_rowwise");
}

// A builder with the totals filled in and the modules up to the layer list: "", model,
// model.embed_tokens, model.layers.
OutlineBuilder begin_decoder(const DecoderFamily& family, DType storage,
                             const std::string& embedding_class = "Embedding") {
  const DecoderSizes& s = family.sizes;
  OutlineBuilder b(storage);
  ModelOutline& o = b.outline;
  o.architecture = family.architecture;
  o.model_type = family.model_type;
  o.hidden_size = s.hidden;
  o.layers = s.layers;
  o.attention_heads = s.heads;
  o.key_value_heads = s.kv_heads;
  o.head_dim = s.head_dim;
  o.vocab_size = s.vocab;
  o.tied_embeddings = s.tied;
  if (family.moe) o.moe = family.moe->sizes;
  b.module("", ModuleKind::other, family.architecture);
  b.module("model", ModuleKind::other,
           family.class_prefix + (family.four_norms ? "TextModel" : "Model"));
  b.embedding("model.embed_tokens", s.vocab, s.hidden, embedding_class);
  b.module("model.layers", ModuleKind::list, "ModuleList");
  return b;
}

// q, k, v and o projections as one attention module.
void attention(OutlineBuilder& b, const std::string& name, const DecoderFamily& family) {
  const DecoderSizes& s = family.sizes;
  const AttentionShape& shape = family.attention;
  b.module(name, ModuleKind::other, family.class_prefix + "Attention");
  b.linear(name + ".q_proj", s.hidden, s.heads * s.head_dim, shape.qkv_bias);
  b.linear(name + ".k_proj", s.hidden, s.kv_heads * s.head_dim, shape.qkv_bias);
  b.linear(name + ".v_proj", s.hidden, s.kv_heads * s.head_dim, shape.qkv_bias);
  b.linear(name + "." + shape.output, s.heads * s.head_dim, s.hidden, shape.output_bias);
}

// Grouped tensors, input-major (semantics 10.1); engine/checkpoint/weights/read_region.h translates
// at the border.
void moe_block(OutlineBuilder& b, const std::string& mlp, const DecoderFamily& family) {
  const MoeOutline& moe = family.moe->sizes;
  const int64_t hidden = family.sizes.hidden, width = moe.intermediate_size;
  auto experts = [&] {
    b.module(mlp + ".experts", ModuleKind::experts, family.class_prefix + "Experts");
    b.parameter(mlp + ".experts.gate_and_up_projs", {moe.experts, hidden, 2 * width});
    b.parameter(mlp + ".experts.down_projs", {moe.experts, width, hidden});
  };
  b.module(mlp, ModuleKind::other, family.class_prefix + "SparseMoeBlock");
  if (family.moe->experts_first) experts();
  b.module(mlp + ".gate", ModuleKind::router, family.class_prefix + "TopKRouter");
  b.parameter(mlp + ".gate.weight", {moe.experts, hidden});
  if (!family.moe->experts_first) experts();
}

// Final norm, rotary embedding, head (its weight only when not tied).
void end_decoder(OutlineBuilder& b, const std::string& class_prefix, const DecoderSizes& s) {
  b.norm("model.norm", s.hidden, class_prefix + "RMSNorm");
  b.module("model.rotary_emb", ModuleKind::rotary, class_prefix + "RotaryEmbedding");
  b.module("lm_head", ModuleKind::linear, "Linear");
  if (!s.tied) b.parameter("lm_head.weight", {s.vocab, s.hidden});
}

// Llama, Mistral, Qwen2 and Qwen3, which differ in biases and norms; Mixtral and Qwen3-MoE, with
// experts in place of MLPs; Gemma 3.
ModelOutline decoder(const ConfigJson& config, DType storage) {
  const DecoderFamily family = read_decoder_family(config);
  const DecoderSizes& s = family.sizes;
  const bool gemma = family.four_norms;
  const std::string& prefix = family.class_prefix;
  std::vector<const char*> norms = {".input_layernorm", ".post_attention_layernorm"};
  if (gemma)
    norms.insert(norms.end(), {".pre_feedforward_layernorm", ".post_feedforward_layernorm"});
  OutlineBuilder b =
      begin_decoder(family, storage, gemma ? "Gemma3TextScaledWordEmbedding" : "Embedding");
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i), mlp = layer + ".mlp";
    b.module(layer, ModuleKind::layer, prefix + "DecoderLayer");
    attention(b, layer + ".self_attn", family);
    if (family.attention.qk_norms)
      for (const char* norm : {".self_attn.q_norm", ".self_attn.k_norm"})
        b.norm(layer + norm, s.head_dim, prefix + "RMSNorm");
    if (family.moe && family.moe->sparse[static_cast<size_t>(i)]) {
      moe_block(b, mlp, family);
    } else {
      b.module(mlp, ModuleKind::other, prefix + "MLP");
      b.linear(mlp + ".gate_proj", s.hidden, s.intermediate, family.mlp_bias);
      b.linear(mlp + ".up_proj", s.hidden, s.intermediate, family.mlp_bias);
      b.linear(mlp + ".down_proj", s.intermediate, s.hidden, family.mlp_bias);
      b.module(mlp + ".act_fn", ModuleKind::other, gemma ? "GELUTanh" : "SiLUActivation");
    }
    for (const char* norm : norms) b.norm(layer + norm, s.hidden, prefix + "RMSNorm");
  }
  end_decoder(b, prefix, s);
  PlanRows rows = {{"layers.*.self_attn.q_proj", "colwise"},
                   {"layers.*.self_attn.k_proj", "colwise"},
                   {"layers.*.self_attn.v_proj", "colwise"}};
  if (family.attention.qk_norms)
    for (const char* norm : {"layers.*.self_attn.q_norm", "layers.*.self_attn.k_norm"})
      rows.emplace_back(norm, "replicated_with_grad_allreduce");
  rows.emplace_back("layers.*.self_attn.o_proj", "rowwise");
  // What transformers says of experts is left out: they are divided by ep_size.
  if (family.model_type != "mixtral")
    rows.insert(rows.end(), {{"layers.*.mlp.gate_proj", "colwise"},
                             {"layers.*.mlp.up_proj", "colwise"},
                             {"layers.*.mlp.down_proj", "rowwise"}});
  own_plan(b.outline, rows);
  return std::move(b.outline);
}

ModelOutline phi(const ConfigJson& config, DType storage) {
  const DecoderFamily family = read_decoder_family(config);
  const DecoderSizes& s = family.sizes;
  OutlineBuilder b = begin_decoder(family, storage);
  const bool qk_norms = family.attention.qk_norms;
  for (int64_t i = 0; i < s.layers; ++i) {
    std::string layer = "model.layers." + std::to_string(i);
    b.module(layer, ModuleKind::layer, "PhiDecoderLayer");
    attention(b, layer + ".self_attn", family);
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
  const DecoderFamily family = read_decoder_family(config);
  const DecoderSizes& s = family.sizes;
  OutlineBuilder b = begin_decoder(family, storage);
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

constexpr Variant kVariants[] = {
    {.architecture = "LlamaForCausalLM",
     .model_type = "llama",
     .family = decoder,
     .defaults = {32000, 4096, 11008, 32, 32},
     .has_attention_bias = true,
     .has_mlp_bias = true,
     .max_positions = 2048},
    {.architecture = "MistralForCausalLM",
     .model_type = "mistral",
     .family = decoder,
     .defaults = {32000, 4096, 14336, 32, 32, 8},
     .max_positions = 4096 * 32},
    {.architecture = "Qwen2ForCausalLM",
     .model_type = "qwen2",
     .family = decoder,
     .defaults = {151936, 4096, 22016, 32, 32, 32},
     .qkv_bias_always = true,
     .max_positions = 32768},
    {.architecture = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .family = decoder,
     .defaults = {151936, 4096, 22016, 32, 32, 32, 128},
     .qk_norms = true,
     .has_attention_bias = true,
     .max_positions = 32768},
    {.architecture = "Gemma3ForCausalLM",
     .model_type = "gemma3_text",
     .family = decoder,
     .defaults = {262208, 2304, 9216, 26, 8, 4, 256, true},
     .qk_norms = true,
     .has_attention_bias = true,
     .four_norms = true,
     .max_positions = 131072,
     .activation_field = "hidden_activation",
     .activation = "gelu_pytorch_tanh",
     .padding_row = 0},
    {.architecture = "MixtralForCausalLM",
     .model_type = "mixtral",
     .family = decoder,
     .defaults = {32000, 4096, 14336, 32, 32, 8},
     .max_positions = 4096 * 32,
     .norm_epsilon = 1e-5},
    {.architecture = "Qwen3MoeForCausalLM",
     .model_type = "qwen3_moe",
     .family = decoder,
     .defaults = {151936, 2048, 6144, 24, 32, 4},
     .qk_norms = true,
     .has_attention_bias = true,
     .max_positions = 32768},
    {.architecture = "Phi3ForCausalLM",
     .model_type = "phi3",
     .family = phi3,
     .defaults = {32064, 3072, 8192, 32, 32},
     .fused = true,
     .max_positions = 4096,
     .norm_epsilon = 1e-5,
     .padding_row = 32000},
    {.architecture = "PhiForCausalLM",
     .model_type = "phi",
     .family = phi,
     .defaults = {51200, 2048, 8192, 24, 32},
     .qkv_bias_always = true,
     .beside = true,
     .max_positions = 2048,
     .norm_epsilon = 1e-5,
     .activation = "gelu_new",
     .epsilon_field = "layer_norm_eps"},
};

}  // namespace

std::vector<std::string> known_architectures() {
  std::vector<std::string> out;
  for (const Variant& one : kVariants) out.emplace_back(one.architecture);
  std::sort(out.begin(), out.end());
  return out;
}

const Variant& variant_of(const ConfigJson& config) {
  std::vector<std::string> architectures = config.strings("architectures");
  std::string type = config.string("model_type", "");
  for (const Variant& one : kVariants)
    if (architectures.empty() ? type == one.model_type : architectures[0] == one.architecture)
      return one;
  std::vector<std::string> known = known_architectures();
  std::string found = architectures.empty()
                          ? (type.empty() ? "no architecture" : "model_type \"" + type + "\"")
                          : "\"" + architectures[0] + "\"";
  Error error(
      ErrorCode::unknown_architecture,
      config.name() + " names " + found + "; the families built in are " + text::join(known, ", "));
  error.key("model.config");
  if (!architectures.empty()) {
    std::vector<std::string> names;
    for (const std::string& k : known) names.push_back(family_name(k));
    std::string near = nearest_name(family_name(architectures[0]), names);
    for (const std::string& k : known)
      if (!near.empty() && family_name(k) == near)
        error.help("did you mean \"architectures\": [\"" + k + "\"]?");
  }
  throw error;
}

}  // namespace meshwright::outlines
