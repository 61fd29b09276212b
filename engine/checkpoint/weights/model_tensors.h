// The tensors of a Hugging Face folder beside the parameters of a model: names, shapes and types,
// as the headers of all its files have them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/weights/safetensors.h"
#include "meshwright/outline.h"

namespace meshwright::weights {

// The folder that model.pretrained names, which must have every parameter of `outline` but those of
// adapters. Reads headers alone. Throws Error(bad_safetensors | weights_mismatch) with the key
// model.pretrained; where config.json says that the weights are quantized, that is told.
WeightFolder open_model_tensors(const std::string& folder, const ModelOutline& outline);

// A model whose head is its embedding has no place for a head of its own: throws
// Error(weights_mismatch) where the folder holds one with other values, which would be lost.
void check_tied_head(const WeightFolder& files, const std::string& folder,
                     const ModelOutline& outline);

// What to tell the user when the folder holds tensors that the model has no use for; empty: there
// are none.
std::string unused_tensors(const WeightFolder& files, const std::string& folder,
                           const ModelOutline& outline);

// The tensors of a folder of adapters beside the factors of a model: names, shapes and types, as
// the header of their file has them.

// What peft writes beside adapter_config.json, and puts before a module's name there.
inline constexpr std::string_view kAdapterWeights = "adapter_model.safetensors",
                                  kPeftPrefix = "base_model.model.";

// Names under which it may have a factor of an adapter, the one that an export gives it first.
std::vector<std::string> adapter_names_in_files(std::string_view architecture,
                                                const ParameterOutline& factor);

// The file of `folder`, as lora.adapter names it. `outline` has its factors, each of which the file
// must have, and nothing else. Reads the header alone. Throws Error(file_unreadable |
// bad_safetensors | weights_mismatch) with the key lora.adapter.
WeightFolder open_adapter_tensors(const std::string& folder, const ModelOutline& outline);

}  // namespace meshwright::weights
