// What tests of plans share: a Llama-shaped outline of any size, and how refusals are looked at.
#pragma once

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/outline.h"

namespace meshwright::testing {

template <class Body>
std::optional<Error> refusal(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

// A refusal with that code, whose message has the words.
template <class Body>
Error refused(ErrorCode code, const std::string& words, const Body& body) {
  const std::optional<Error> error = refusal(body);
  REQUIRE(error.has_value());
  CHECK(code_string(error->code()) == code_string(code));
  CHECK_MESSAGE(error->message().find(words) != std::string::npos, error->message());
  return *error;
}

using Names = std::vector<std::string>;

struct LlamaSizes {
  int64_t layers = 2, hidden = 8, ffn = 20, heads = 4, kv_heads = 2, vocab = 32;
  bool tied = false, head_norms = false;
  int64_t experts = 0, active = 0;  // experts > 0: a mixture in place of each mlp
  int64_t head_dim = 0;             // 0: hidden / heads
};

inline ModelOutline llama_outline(const LlamaSizes& s) {
  ModelOutline o;
  o.architecture = s.experts > 0 ? "MixtralForCausalLM" : "LlamaForCausalLM";
  o.model_type = s.experts > 0 ? "mixtral" : "llama";
  o.hidden_size = s.hidden, o.layers = s.layers, o.attention_heads = s.heads,
  o.key_value_heads = s.kv_heads;
  o.head_dim = s.head_dim > 0 ? s.head_dim : s.hidden / s.heads, o.vocab_size = s.vocab,
  o.tied_embeddings = s.tied;
  if (s.experts > 0) o.moe = MoeOutline{s.experts, s.active, s.ffn, 0};
  auto module = [&](const std::string& name, ModuleKind kind, const std::string& class_name = "") {
    o.modules.push_back({name, kind, class_name});
  };
  auto leaf = [&](const std::string& name, ModuleKind kind, std::vector<int64_t> shape) {
    module(name, kind);
    o.parameters.push_back({name + ".weight", std::move(shape), DType::float32});
  };
  module("", ModuleKind::other, o.architecture);
  module("model", ModuleKind::other);
  leaf("model.embed_tokens", ModuleKind::embedding, {s.vocab, s.hidden});
  module("model.layers", ModuleKind::list);
  for (int64_t i = 0; i < s.layers; ++i) {
    std::string layer = "model.layers." + std::to_string(i);
    int64_t kv = s.kv_heads * o.head_dim, q = s.heads * o.head_dim;
    module(layer, ModuleKind::layer, "LlamaDecoderLayer");
    module(layer + ".self_attn", ModuleKind::other, "LlamaAttention");
    leaf(layer + ".self_attn.q_proj", ModuleKind::linear, {q, s.hidden});
    leaf(layer + ".self_attn.k_proj", ModuleKind::linear, {kv, s.hidden});
    leaf(layer + ".self_attn.v_proj", ModuleKind::linear, {kv, s.hidden});
    leaf(layer + ".self_attn.o_proj", ModuleKind::linear, {s.hidden, q});
    if (s.head_norms) {
      for (const char* norm : {".self_attn.q_norm", ".self_attn.k_norm"}) {
        leaf(layer + norm, ModuleKind::norm, {o.head_dim});
        o.own_tp_plan.emplace_back(layer + norm, "replicated_with_grad_allreduce");
      }
    }
    module(layer + ".mlp", ModuleKind::other, "LlamaMLP");
    if (s.experts > 0) {
      leaf(layer + ".mlp.gate", ModuleKind::router, {s.experts, s.hidden});
      module(layer + ".mlp.experts", ModuleKind::experts);
      o.parameters.push_back(
          {layer + ".mlp.experts.gate_up_proj", {s.experts, 2 * s.ffn, s.hidden}, DType::float32});
      o.parameters.push_back(
          {layer + ".mlp.experts.down_proj", {s.experts, s.hidden, s.ffn}, DType::float32});
    } else {
      leaf(layer + ".mlp.gate_proj", ModuleKind::linear, {s.ffn, s.hidden});
      leaf(layer + ".mlp.up_proj", ModuleKind::linear, {s.ffn, s.hidden});
      leaf(layer + ".mlp.down_proj", ModuleKind::linear, {s.hidden, s.ffn});
    }
    leaf(layer + ".input_layernorm", ModuleKind::norm, {s.hidden});
    leaf(layer + ".post_attention_layernorm", ModuleKind::norm, {s.hidden});
  }
  leaf("model.norm", ModuleKind::norm, {s.hidden});
  module("model.rotary_emb", ModuleKind::rotary);
  if (s.tied)
    module("lm_head", ModuleKind::linear);
  else
    leaf("lm_head", ModuleKind::linear, {s.vocab, s.hidden});
  return o;
}

}  // namespace meshwright::testing
