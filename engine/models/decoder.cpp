#include "engine/models/decoder_family.h"

#include <string_view>

#include "meshwright/error.h"

namespace meshwright::outlines {

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

namespace {

constexpr int64_t kMaxLayers = 4096, kMaxVocabulary = int64_t{1} << 28;  // as kMaxWidth

}  // namespace

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
  auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::bad_model_config, config.name() + ": " + what).key("model.config");
  };
  if (s.heads % s.kv_heads != 0)
    fail("num_attention_heads = " + std::to_string(s.heads) +
         " is not a multiple of num_key_value_heads = " + std::to_string(s.kv_heads));
  if (config.has("head_dim") || d.head_dim != 0) {
    s.head_dim = config.integer("head_dim", 1, kMaxWidth,
                                d.head_dim == 0 ? std::nullopt : std::optional(d.head_dim));
  } else {
    if (s.hidden % s.heads != 0)
      fail("hidden_size = " + std::to_string(s.hidden) +
           " is not a multiple of num_attention_heads = " + std::to_string(s.heads) +
           ", and there is no head_dim");
    s.head_dim = s.hidden / s.heads;
  }
  return s;
}

OutlineBuilder begin_decoder(const std::string& architecture, const std::string& model_type,
                             const std::string& class_prefix, const DecoderSizes& s, DType storage,
                             const std::string& embedding_class) {
  OutlineBuilder b(storage);
  ModelOutline& o = b.outline;
  o.architecture = architecture;
  o.model_type = model_type;
  o.hidden_size = s.hidden;
  o.layers = s.layers;
  o.attention_heads = s.heads;
  o.key_value_heads = s.kv_heads;
  o.head_dim = s.head_dim;
  o.vocab_size = s.vocab;
  o.tied_embeddings = s.tied;
  b.module("", ModuleKind::other, architecture);
  b.module("model", ModuleKind::other, class_prefix + "Model");
  b.embedding("model.embed_tokens", s.vocab, s.hidden, embedding_class);
  b.module("model.layers", ModuleKind::list, "ModuleList");
  return b;
}

void attention(OutlineBuilder& b, const std::string& layer, const std::string& class_prefix,
               const DecoderSizes& s, const AttentionShape& shape) {
  std::string name = layer + ".self_attn";
  b.module(name, ModuleKind::other, class_prefix + "Attention");
  b.linear(name + ".q_proj", s.hidden, s.heads * s.head_dim, shape.qkv_bias);
  b.linear(name + ".k_proj", s.hidden, s.kv_heads * s.head_dim, shape.qkv_bias);
  b.linear(name + ".v_proj", s.hidden, s.kv_heads * s.head_dim, shape.qkv_bias);
  b.linear(name + "." + shape.output, s.heads * s.head_dim, s.hidden, shape.output_bias);
  if (shape.qk_norms) {
    b.norm(name + ".q_norm", s.head_dim, class_prefix + "RMSNorm");
    b.norm(name + ".k_norm", s.head_dim, class_prefix + "RMSNorm");
  }
}

void gated_mlp(OutlineBuilder& b, const std::string& mlp, const std::string& class_prefix,
               int64_t hidden, int64_t intermediate, bool bias, const std::string& activation) {
  b.module(mlp, ModuleKind::other, class_prefix + "MLP");
  b.linear(mlp + ".gate_proj", hidden, intermediate, bias);
  b.linear(mlp + ".up_proj", hidden, intermediate, bias);
  b.linear(mlp + ".down_proj", intermediate, hidden, bias);
  b.module(mlp + ".act_fn", ModuleKind::other, activation);
}

PlanRows attention_plan(bool qk_norms) {
  PlanRows rows = {{"layers.*.self_attn.q_proj", "colwise"},
                   {"layers.*.self_attn.k_proj", "colwise"},
                   {"layers.*.self_attn.v_proj", "colwise"}};
  if (qk_norms)
    for (const char* norm : {"layers.*.self_attn.q_norm", "layers.*.self_attn.k_norm"})
      rows.emplace_back(norm, "replicated_with_grad_allreduce");
  rows.emplace_back("layers.*.self_attn.o_proj", "rowwise");
  return rows;
}

PlanRows gated_mlp_plan(PlanRows rows) {
  rows.insert(rows.end(), {{"layers.*.mlp.gate_proj", "colwise"},
                           {"layers.*.mlp.up_proj", "colwise"},
                           {"layers.*.mlp.down_proj", "rowwise"}});
  return rows;
}

void end_decoder(OutlineBuilder& b, const std::string& class_prefix, const DecoderSizes& s) {
  b.norm("model.norm", s.hidden, class_prefix + "RMSNorm");
  b.module("model.rotary_emb", ModuleKind::rotary, class_prefix + "RotaryEmbedding");
  b.module("lm_head", ModuleKind::linear, "Linear");
  if (!s.tied) b.parameter("lm_head.weight", {s.vocab, s.hidden});
}

}  // namespace meshwright::outlines
