// Model families: outlines from a Hugging Face config.json. The runnable models are built from the
// same.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/models/net_config.h"
#include "meshwright/model/config_json.h"
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
// What of it is names and shapes alone, by the architecture that the file names.
Family family_of(const ConfigJson& config);
// The architectures there are, sorted.
std::vector<std::string> known_architectures();
// What to do about a path that is not there and has the form of a name on the Hugging Face hub
// ("meta-llama/Llama-3.2-1B"): how it is downloaded, and which key names the folder then. Empty for
// anything else.
std::vector<std::string> hub_helps(const std::filesystem::path& path);

}  // namespace meshwright::outlines
