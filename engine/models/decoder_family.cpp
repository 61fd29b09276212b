#include "engine/models/decoder_family.h"

#include <numeric>

#include "engine/models/families.h"
#include "engine/models/fused_rows.h"
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
  b.own_plan(gated_mlp_plan(attention_plan(family.attention.qk_norms)));
  return std::move(b.outline);
}

}  // namespace meshwright::outlines
