// Families of decoders that a Hugging Face config.json describes, and the outlines of their models.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/model/config_json.h"
#include "meshwright/model/model_family.h"
#include "meshwright/outline.h"

namespace meshwright::outlines {

// The outline of a decoder, in the order in which the real model registers its modules and
// parameters.

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

// Families of decoders that a Hugging Face config.json describes, and the outlines of their models.

// One function per model family: config.json to outline. Names and shapes are those of
// transformers' named_parameters().

using Family = ModelOutline (*)(const ConfigJson& config, DType storage);

ModelOutline llama_family(
    const ConfigJson& config,
    DType storage);  // Llama, Mistral, Qwen2, Qwen3: they differ in biases and norms
ModelOutline gemma3(const ConfigJson& config, DType storage);
ModelOutline phi(const ConfigJson& config, DType storage);
ModelOutline phi3(const ConfigJson& config, DType storage);
ModelOutline moe_family(const ConfigJson& config, DType storage);  // Mixtral, Qwen3-MoE

// The decoder families that run differ in few things. The outline and the runnable net are both
// built from this.

// Blocks of experts in place of MLPs, in some layers or all.
struct MoeFamily {
  MoeOutline sizes;
  std::vector<bool> sparse;    // by layer: whether it has experts
  bool experts_first = false;  // registered before the router
};

struct DecoderFamily {
  std::string architecture, model_type;  // "LlamaForCausalLM", "llama"
  std::string class_prefix;              // "Llama"
  DecoderSizes sizes;
  AttentionShape attention;
  bool mlp_bias = false;
  bool fused =
      false;  // qkv_proj and gate_up_proj in place of three and two projections, as Phi3 has them
  bool four_norms = false;  // norms behind attention and MLP as well, as Gemma 3 has them
  bool beside = false;  // attention and a plain MLP beside each other behind one LayerNorm, a head
                        // with a bias, as Phi has them
  std::optional<MoeFamily> moe;
};

DecoderFamily read_decoder_family(const ConfigJson& config);
// The experts of the families that have them: how many, how wide, in which layers; nullopt where no
// layer has any.
std::optional<MoeFamily> read_moe_family(const ConfigJson& config, const std::string& model_type,
                                         const DecoderSizes& sizes);

// The rows of fused weights. Attention splits by key-value heads; the MLP into as many groups of
// equal rows as that allows.
FusedRows qkv_rows(const DecoderSizes& sizes);
FusedRows gate_up_rows(const DecoderSizes& sizes);

// The families built in, described by a Hugging Face config.json, in the form that a plugin brings
// its own.

class HubFamily final : public ModelFamily {
 public:
  void check_runs(const ModelRequest& request, Diagnostics& diagnostics) const override;
  ModelOutline outline(const ModelRequest& request) const override;
  std::unique_ptr<RunningModel> make(const ModelRequest& request) const override;

  // Where planning has no LibTorch nothing can be made: who runs models says how.
  using Maker = std::unique_ptr<RunningModel> (*)(const ModelRequest& request);
  static void made_by(Maker maker);
};

// max_position_embeddings as the file states it, stretched; 0: it does not, and a family's default
// is no statement of this model.
int64_t stated_positions(const ConfigJson& config);

}  // namespace meshwright::outlines
