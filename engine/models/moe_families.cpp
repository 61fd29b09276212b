// Mixture-of-experts families. Experts are grouped parameters, as transformers 5 keeps them in memory.
#include <algorithm>

#include "engine/models/decoder.h"
#include "engine/models/families.h"
#include "meshwright/error.h"

namespace meshwright::models {
namespace {

constexpr int64_t kMaxExperts = 1 << 16, kMaxWidth = 1 << 24;

MoeOutline read_moe(const ConfigJson& config, int64_t experts, int64_t active, int64_t width) {
  if (active > experts)
    throw Error(ErrorCode::bad_model_config, config.name() + ": num_experts_per_tok = " + std::to_string(active) + " is more than the " +
                                                 std::to_string(experts) + " experts")
        .key("model.config");
  return {experts, active, width, 0};
}

void experts(OutlineBuilder& b, const std::string& mlp, const std::string& class_prefix, const MoeOutline& moe, int64_t hidden) {
  b.module(mlp + ".experts", ModuleKind::experts, class_prefix + "Experts");
  b.parameter(mlp + ".experts.gate_up_proj", {moe.experts, 2 * moe.intermediate_size, hidden});
  b.parameter(mlp + ".experts.down_proj", {moe.experts, hidden, moe.intermediate_size});
  b.module(mlp + ".experts.act_fn", ModuleKind::other, "SiLUActivation");
}

void router(OutlineBuilder& b, const std::string& mlp, const std::string& class_prefix, const MoeOutline& moe, int64_t hidden) {
  b.module(mlp + ".gate", ModuleKind::router, class_prefix + "TopKRouter");
  b.parameter(mlp + ".gate.weight", {moe.experts, hidden});
}

PlanRows experts_plan(PlanRows rows) {
  rows.insert(rows.end(), {{"layers.*.mlp.experts.gate_up_proj", "packed_colwise"},
                           {"layers.*.mlp.experts.down_proj", "rowwise"},
                           {"layers.*.mlp.experts", "moe_tp_experts"}});
  return rows;
}

}  // namespace

ModelOutline mixtral(const ConfigJson& config, DType storage) {
  DecoderSizes s = read_decoder_sizes(config, {32000, 4096, 14336, 32, 32, 8, 0, false});
  MoeOutline moe = read_moe(config, config.integer("num_local_experts", 1, kMaxExperts, 8),
                            config.integer("num_experts_per_tok", 1, kMaxExperts, 2), s.intermediate);
  OutlineBuilder b = begin_decoder("MixtralForCausalLM", "mixtral", "Mixtral", s, storage);
  b.outline.moe = moe;
  for (int64_t i = 0; i < s.layers; ++i) {
    std::string layer = "model.layers." + std::to_string(i);
    b.module(layer, ModuleKind::layer, "MixtralDecoderLayer");
    attention(b, layer, "Mixtral", s, {});
    b.module(layer + ".mlp", ModuleKind::other, "MixtralSparseMoeBlock");
    router(b, layer + ".mlp", "Mixtral", moe, s.hidden);
    experts(b, layer + ".mlp", "Mixtral", moe, s.hidden);
    b.norm(layer + ".input_layernorm", s.hidden, "MixtralRMSNorm");
    b.norm(layer + ".post_attention_layernorm", s.hidden, "MixtralRMSNorm");
  }
  end_decoder(b, "Mixtral", s);
  b.own_plan(experts_plan(attention_plan(false)));
  return std::move(b.outline);
}

ModelOutline qwen3_moe(const ConfigJson& config, DType storage) {
  DecoderSizes s = read_decoder_sizes(config, {151936, 2048, 6144, 24, 32, 4, 0, false});
  int64_t count = config.integer(config.has("num_experts") ? "num_experts" : "num_local_experts", 0, kMaxExperts, 128);
  MoeOutline moe;
  if (count > 0)
    moe = read_moe(config, count, config.integer("num_experts_per_tok", 1, kMaxExperts, 8),
                   config.integer("moe_intermediate_size", 1, kMaxWidth, 768));
  int64_t every = config.integer("decoder_sparse_step", 1, 4096, 1);
  std::vector<int64_t> dense = config.integers("mlp_only_layers", 0, 4095);
  bool bias = config.boolean("attention_bias", false);
  OutlineBuilder b = begin_decoder("Qwen3MoeForCausalLM", "qwen3_moe", "Qwen3Moe", s, storage);
  bool any = false;
  for (int64_t i = 0; i < s.layers; ++i) {
    std::string layer = "model.layers." + std::to_string(i);
    b.module(layer, ModuleKind::layer, "Qwen3MoeDecoderLayer");
    attention(b, layer, "Qwen3Moe", s, {bias, bias, true, "o_proj"});
    if (std::find(dense.begin(), dense.end(), i) == dense.end() && count > 0 && (i + 1) % every == 0) {
      b.module(layer + ".mlp", ModuleKind::other, "Qwen3MoeSparseMoeBlock");
      experts(b, layer + ".mlp", "Qwen3Moe", moe, s.hidden);
      router(b, layer + ".mlp", "Qwen3Moe", moe, s.hidden);
      any = true;
    } else {
      gated_mlp(b, layer + ".mlp", "Qwen3Moe", s.hidden, s.intermediate, false);
    }
    b.norm(layer + ".input_layernorm", s.hidden, "Qwen3MoeRMSNorm");
    b.norm(layer + ".post_attention_layernorm", s.hidden, "Qwen3MoeRMSNorm");
  }
  if (any) b.outline.moe = moe;
  end_decoder(b, "Qwen3Moe", s);
  b.own_plan(gated_mlp_plan(experts_plan(attention_plan(true))));
  return std::move(b.outline);
}

}  // namespace meshwright::models
