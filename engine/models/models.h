// Model families: outlines from a Hugging Face config.json. The runnable models are built from the
// same.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/models/config_json.h"
#include "engine/models/net_config.h"
#include "meshwright/model/model_family.h"
#include "meshwright/outline.h"

namespace meshwright::outlines {

// Reads a config.json, or the config.json of a folder. Throws Error(file_unreadable |
// bad_model_config | unknown_architecture) with the field at fault; sizes are bounded, so that no
// value can make the outline explode.
ModelOutline load_outline(const std::filesystem::path& config_or_folder, DType storage);
// The same from JSON text; `name` is used in messages.
ModelOutline parse_outline(std::string_view json, const std::string& name, DType storage);
// The two steps of load_outline(), for those who read more of the configuration than the outline
// needs.
ConfigJson load_config(const std::filesystem::path& config_or_folder);
ModelOutline make_outline(const ConfigJson& config, DType storage);
// The architectures there are, sorted.
std::vector<std::string> known_architectures();
// What to do about a path that is not there and has the form of a name on the Hugging Face hub
// ("meta-llama/Llama-3.2-1B"): how it is downloaded, and which key names the folder then. Empty for
// anything else.
std::vector<std::string> hub_helps(const std::filesystem::path& path);

// What the weights of the families built in are before any training, as transformers'
// _init_weights has it.

struct InitialValues {
  double range = 0.02;                 // weights of Linear and Embedding: normal(0, range)
  std::optional<int64_t> padding_row;  // of the embedding: zeros (pad_token_id)
  bool zero_norms = false;             // norms that scale by 1 + weight; else ones
};

InitialValues initial_values(const NetConfig& config);
// Zeros for biases, ones or zeros for norms, else normal(0, range).
InitialValue initial_value(std::string_view parameter, const InitialValues& values = {});

}  // namespace meshwright::outlines
