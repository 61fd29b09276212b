// Families of decoders that a Hugging Face config.json describes, and the outlines of their models.
#pragma once

#include <optional>
#include <vector>

#include "engine/models/decoder.h"
#include "meshwright/model/config_json.h"
#include "meshwright/outline.h"

namespace meshwright::outlines {

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

}  // namespace meshwright::outlines
