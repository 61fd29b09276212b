// The outline of a decoder, in the order in which the real model registers its modules and
// parameters.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "meshwright/model/config_json.h"
#include "meshwright/model/model_family.h"
#include "meshwright/outline.h"

namespace meshwright::outlines {

// Pairs of pattern and style.
using PlanRows = std::vector<std::pair<const char*, const char*>>;

// Hugging Face style entries of the inner model ("layers.*.mlp.up_proj"), prefixed with
// inner_prefix.
void own_plan(ModelOutline& outline, const PlanRows& inner);

// The sizes every decoder family has, and the pieces they share.

// Far above any real model, far below what could overflow or exhaust memory.
constexpr int64_t kMaxWidth = int64_t{1} << 24;

// Defaults of a family's configuration class, used for fields that config.json leaves out.
struct DecoderDefaults {
  int64_t vocab = 32000, hidden = 4096, intermediate = 11008, layers = 32, heads = 32;
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t head_dim = 0;  // 0: hidden / heads
  bool tied = false;
};

struct DecoderSizes {
  int64_t vocab = 0, hidden = 0, intermediate = 0, layers = 0, heads = 0, kv_heads = 0,
          head_dim = 0;
  bool tied = false;
};

// Reads and checks the sizes: positive, bounded, heads a multiple of kv_heads, hidden a multiple of
// heads where head_dim follows from it.
DecoderSizes read_decoder_sizes(const ConfigJson& config, const DecoderDefaults& defaults);

// A builder with the totals filled in and the modules up to the layer list: "", model,
// model.embed_tokens, model.layers.
OutlineBuilder begin_decoder(const std::string& architecture, const std::string& model_type,
                             const std::string& class_prefix, const DecoderSizes& sizes,
                             DType storage, const std::string& embedding_class = "Embedding");
// q, k, v and o projections, then q and k norms when asked for, as one attention module.
struct AttentionShape {
  bool qkv_bias = false, output_bias = false, qk_norms = false;
  std::string output = "o_proj";
};
void attention(OutlineBuilder& b, const std::string& layer, const std::string& class_prefix,
               const DecoderSizes& sizes, const AttentionShape& shape);
// gate, up and down projections and the activation.
void gated_mlp(OutlineBuilder& b, const std::string& mlp, const std::string& class_prefix,
               int64_t hidden, int64_t intermediate, bool bias,
               const std::string& activation = "SiLUActivation");
// What their own plans say of these: a new list, and a list with the rows of gated_mlp() added.
PlanRows attention_plan(bool qk_norms);
PlanRows gated_mlp_plan(PlanRows rows);
// Final norm, rotary embedding, head (its weight only when not tied).
void end_decoder(OutlineBuilder& b, const std::string& class_prefix, const DecoderSizes& sizes);

}  // namespace meshwright::outlines
