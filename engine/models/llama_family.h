// Llama, Mistral, Qwen2 and Qwen3 differ in few things. The outline and the runnable net are both built from this.
#pragma once

#include "engine/models/decoder.h"

namespace meshwright::models {

struct LlamaFamily {
  std::string architecture, model_type;  // "LlamaForCausalLM", "llama"
  std::string class_prefix;              // "Llama"
  DecoderSizes sizes;
  AttentionShape attention;
  bool mlp_bias = false;
};

LlamaFamily read_llama_family(const ConfigJson& config);

}  // namespace meshwright::models
