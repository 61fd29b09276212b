// Mixture-of-experts families. Experts are grouped tensors, input-major (semantics 10.1);
// engine/checkpoint/weights/experts.h translates at the border.
#include <algorithm>

#include "engine/models/decoder_family.h"
#include "engine/models/families.h"
#include "meshwright/error.h"

namespace meshwright::outlines {
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
  b.own_plan(family.model_type == "mixtral" ? rows : gated_mlp_plan(rows));
  return std::move(b.outline);
}

}  // namespace meshwright::outlines
