// The decoder families that run differ in few things. The outline and the runnable net are both built from this.
#pragma once

#include "engine/models/decoder.h"

namespace meshwright::models {

struct DecoderFamily {
  std::string architecture, model_type;  // "LlamaForCausalLM", "llama"
  std::string class_prefix;              // "Llama"
  DecoderSizes sizes;
  AttentionShape attention;
  bool mlp_bias = false;
  bool fused = false;       // qkv_proj and gate_up_proj in place of three and two projections, as Phi3 has them
  bool four_norms = false;  // norms behind attention and MLP as well, as Gemma 3 has them
};

DecoderFamily read_decoder_family(const ConfigJson& config);

// The rows of fused weights. Attention splits by key-value heads; the MLP into as many groups of equal rows as that allows.
FusedRows qkv_rows(const DecoderSizes& sizes);
FusedRows gate_up_rows(const DecoderSizes& sizes);

}  // namespace meshwright::models
