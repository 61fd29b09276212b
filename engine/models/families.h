// One function per model family: config.json to outline. Names and shapes are those of
// transformers' named_parameters().
#pragma once

#include "engine/models/config_json.h"
#include "meshwright/outline.h"

namespace meshwright::outlines {

using Family = ModelOutline (*)(const ConfigJson& config, DType storage);

ModelOutline llama_family(
    const ConfigJson& config,
    DType storage);  // Llama, Mistral, Qwen2, Qwen3: they differ in biases and norms
ModelOutline gemma3(const ConfigJson& config, DType storage);
ModelOutline phi(const ConfigJson& config, DType storage);
ModelOutline phi3(const ConfigJson& config, DType storage);
ModelOutline moe_family(const ConfigJson& config, DType storage);  // Mixtral, Qwen3-MoE

}  // namespace meshwright::outlines
