#include "engine/models/decoder_family.h"
#include "engine/models/families.h"
#include "meshwright/error.h"

namespace meshwright::outlines {

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
  b.own_plan(rows);
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
  b.own_plan({{"layers.*.self_attn.qkv_proj", "colwise_gather_output"},
              {"layers.*.self_attn.o_proj", "rowwise_split_input"},
              {"layers.*.mlp.gate_up_proj", "colwise_gather_output"},
              {"layers.*.mlp.down_proj", "rowwise_split_input"}});
  return std::move(b.outline);
}

}  // namespace meshwright::outlines
