// Model families: outlines from a Hugging Face config.json. The runnable models are built from the
// same.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
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
// What to do about a path that is not there and has the form of a name on the Hugging Face hub
// ("meta-llama/Llama-3.2-1B"): how it is downloaded, and which key names the folder then. Empty for
// anything else.
std::vector<std::string> hub_helps(const std::filesystem::path& path);

}  // namespace meshwright::outlines

namespace meshwright::weights {

// Where the rows of a fused weight lie in memory and checkpoints (interleaved, see FusedRows), and
// where in Hugging Face's files.

// Far above the key-value heads of any model: what is read out of order stays a bounded number of
// reads.
inline constexpr int64_t kMostFusedGroups = 4096;

// Rows that follow each other in both.
struct RowRun {
  int64_t memory = 0, file = 0, count = 0;
};
// The runs that make up rows [begin, end) of memory, in the order of memory, or of the file, in its
// order.
std::vector<RowRun> runs_of_memory(const FusedRows& fused, int64_t begin, int64_t end);
std::vector<RowRun> runs_of_file(const FusedRows& fused, int64_t begin, int64_t end);

// For the flattened tensor: elements in place of rows. `shape`: of the tensor.
FusedRows fused_elements(const FusedRows& fused, std::span<const int64_t> shape);
// Whether the groups make up a tensor of that shape.
bool fits(const FusedRows& fused, std::span<const int64_t> shape);

}  // namespace meshwright::weights
