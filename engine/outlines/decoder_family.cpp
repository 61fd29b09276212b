#include "engine/outlines/decoder_family.h"

#include <numeric>

#include "engine/outlines/families.h"
#include "engine/weights/fused_rows.h"
#include "meshwright/error.h"

namespace meshwright::outlines {
namespace {

struct Variant {
  const char *architecture, *model_type, *class_prefix;
  DecoderDefaults defaults;
  bool qkv_bias_always = false, qk_norms = false;
  bool has_attention_bias = false, has_mlp_bias = false;  // the field exists in its configuration
  bool output_follows_bias = true;
  bool fused = false, four_norms = false, beside = false;
};

constexpr Variant kVariants[] = {
    {"LlamaForCausalLM",
     "llama",
     "Llama",
     {32000, 4096, 11008, 32, 32, 0, 0, false},
     false,
     false,
     true,
     true,
     true},
    {"MistralForCausalLM",
     "mistral",
     "Mistral",
     {32000, 4096, 14336, 32, 32, 8, 0, false},
     false,
     false,
     false,
     false,
     false},
    {"Qwen2ForCausalLM",
     "qwen2",
     "Qwen2",
     {151936, 4096, 22016, 32, 32, 32, 0, false},
     true,
     false,
     false,
     false,
     false},
    {"Qwen3ForCausalLM",
     "qwen3",
     "Qwen3",
     {151936, 4096, 22016, 32, 32, 32, 128, false},
     false,
     true,
     true,
     false,
     true},
    {"Gemma3ForCausalLM",
     "gemma3_text",
     "Gemma3",
     {262208, 2304, 9216, 26, 8, 4, 256, true},
     false,
     true,
     true,
     false,
     true,
     false,
     true},
    {"MixtralForCausalLM",
     "mixtral",
     "Mixtral",
     {32000, 4096, 14336, 32, 32, 8, 0, false},
     false,
     false,
     false,
     false,
     false},
    {"Qwen3MoeForCausalLM",
     "qwen3_moe",
     "Qwen3Moe",
     {151936, 2048, 6144, 24, 32, 4, 0, false},
     false,
     true,
     true,
     false,
     true},
    {"Phi3ForCausalLM",
     "phi3",
     "Phi3",
     {32064, 3072, 8192, 32, 32, 0, 0, false},
     false,
     false,
     false,
     false,
     false,
     true,
     false},
    {"PhiForCausalLM",
     "phi",
     "Phi",
     {51200, 2048, 8192, 24, 32, 0, 0, false},
     true,
     false,
     false,
     false,
     false,
     false,
     false,
     true},
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
  family.attention = {v->qkv_bias_always || bias, v->output_follows_bias && bias, v->qk_norms,
                      "o_proj"};
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
