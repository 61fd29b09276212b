#include "sdk/kit/conformance/outlines.h"

namespace meshwright::conformance {
namespace {

class Builder {
 public:
  explicit Builder(const ModelShape& shape) : s_(shape) {
    o_.architecture = s_.architecture;
    o_.model_type = s_.experts > 0 ? "mixtral" : "llama";
    o_.hidden_size = s_.hidden;
    o_.layers = s_.layers;
    o_.attention_heads = s_.heads;
    o_.key_value_heads = s_.kv_heads;
    o_.head_dim = s_.hidden / s_.heads;
    o_.vocab_size = s_.vocab;
    o_.tied_embeddings = s_.tied;
    if (s_.experts > 0) o_.moe = MoeOutline{s_.experts, 2, s_.ffn, 0};
  }

  ModelOutline build() {
    module("", ModuleKind::other, s_.architecture);
    module("model", ModuleKind::other, "LlamaModel");
    module("model.embed_tokens", ModuleKind::embedding, "Embedding");
    parameter("model.embed_tokens.weight", {s_.vocab, s_.hidden});
    module("model.layers", ModuleKind::list, "ModuleList");
    for (int64_t i = 0; i < s_.layers; ++i) layer("model.layers." + std::to_string(i));
    norm("model.norm");
    module("model.rotary_emb", ModuleKind::rotary, "LlamaRotaryEmbedding");
    module("lm_head", ModuleKind::linear, "Linear");
    if (!s_.tied) parameter("lm_head.weight", {s_.vocab, s_.hidden});
    plan("self_attn.q_proj", "colwise");
    plan("self_attn.k_proj", "colwise");
    plan("self_attn.v_proj", "colwise");
    plan("self_attn.o_proj", "rowwise");
    if (s_.experts == 0) {
      plan("mlp.gate_proj", "colwise");
      plan("mlp.up_proj", "colwise");
      plan("mlp.down_proj", "rowwise");
    }
    return std::move(o_);
  }

 private:
  void module(const std::string& name, ModuleKind kind, const std::string& class_name) {
    o_.modules.push_back({name, kind, class_name});
  }
  void parameter(const std::string& name, std::vector<int64_t> shape) {
    o_.parameters.push_back({name, std::move(shape), DType::float32});
  }
  void linear(const std::string& name, int64_t in, int64_t out) {
    module(name, ModuleKind::linear, "Linear");
    parameter(name + ".weight", {out, in});
  }
  void norm(const std::string& name) {
    module(name, ModuleKind::norm, "LlamaRMSNorm");
    parameter(name + ".weight", {s_.hidden});
  }
  void plan(const std::string& module, const char* style) {
    o_.own_tp_plan.emplace_back("model.layers.*." + module, style);
  }

  void layer(const std::string& name) {
    module(name, ModuleKind::layer, "LlamaDecoderLayer");
    module(name + ".self_attn", ModuleKind::other, "LlamaAttention");
    linear(name + ".self_attn.q_proj", s_.hidden, s_.hidden);
    linear(name + ".self_attn.k_proj", s_.hidden, s_.kv_heads * o_.head_dim);
    linear(name + ".self_attn.v_proj", s_.hidden, s_.kv_heads * o_.head_dim);
    linear(name + ".self_attn.o_proj", s_.hidden, s_.hidden);
    if (s_.experts > 0) {
      module(name + ".mlp", ModuleKind::other, "MixtralSparseMoeBlock");
      module(name + ".mlp.gate", ModuleKind::router, "MixtralTopKRouter");
      parameter(name + ".mlp.gate.weight", {s_.experts, s_.hidden});
      module(name + ".mlp.experts", ModuleKind::experts, "MixtralExperts");
      parameter(name + ".mlp.experts.gate_up_proj", {s_.experts, 2 * s_.ffn, s_.hidden});
      parameter(name + ".mlp.experts.down_proj", {s_.experts, s_.hidden, s_.ffn});
    } else {
      module(name + ".mlp", ModuleKind::other, "LlamaMLP");
      linear(name + ".mlp.gate_proj", s_.hidden, s_.ffn);
      linear(name + ".mlp.up_proj", s_.hidden, s_.ffn);
      linear(name + ".mlp.down_proj", s_.ffn, s_.hidden);
    }
    norm(name + ".input_layernorm");
    norm(name + ".post_attention_layernorm");
  }

  const ModelShape& s_;
  ModelOutline o_;
};

}  // namespace

ModelOutline make_outline(const ModelShape& shape) { return Builder(shape).build(); }

}  // namespace meshwright::conformance
