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

// The bits of attention that differ.
struct AttentionShape {
  bool qkv_bias = false, output_bias = false, qk_norms = false;
  std::string output = "o_proj";
};

// One function per model family: config.json to outline. Names and shapes are those of
// transformers' named_parameters().

using Family = ModelOutline (*)(const ConfigJson& config, DType storage);

// What the classes of one architecture have that others have not.
struct Variant {
  const char *architecture, *model_type;
  Family family;
  DecoderDefaults defaults;
  bool qkv_bias_always = false, qk_norms = false;
  bool has_attention_bias = false, has_mlp_bias = false;  // the field exists in its configuration
  bool fused = false, four_norms = false, beside = false;
  // What a net of it is run with where its configuration does not say.
  int64_t max_positions = 0;
  double norm_epsilon = 1e-6;
  const char *activation_field = "hidden_act", *activation = "silu";
  std::optional<int64_t> padding_row = std::nullopt;
  const char* epsilon_field = "rms_norm_eps";
};
// By the architecture that the file names, else by its model_type. Throws
// Error(unknown_architecture) with the nearest one.
const Variant& variant_of(const ConfigJson& config);
// The architectures there are, sorted.
std::vector<std::string> known_architectures();

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
