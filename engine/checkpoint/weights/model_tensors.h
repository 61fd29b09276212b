// The tensors of a Hugging Face folder beside the parameters of a model: names, shapes and types,
// as the headers of all its files have them.
#pragma once

#include <string>

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

}  // namespace meshwright::weights
