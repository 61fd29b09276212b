#include "engine/checkpoint/weights/adapter_tensors.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "engine/checkpoint/weights/convert.h"
#include "engine/checkpoint/weights/transposed.h"
#include "meshwright/error.h"
#include "sdk/base/low_rank.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::weights {
namespace {

constexpr const char* kAdapterKey = "lora.adapter";
// Where both are of one save, and where the model is another one.
constexpr const char* kOneSave =
    "take adapter_config.json and adapter_model.safetensors from one save";
constexpr const char* kOtherModel = "name adapters that were trained beside this model";
constexpr const char* kTheirTargets =
    "set lora.target_modules and lora.exclude_modules to those of its adapter_config.json";

Error adapters_mismatch(const std::string& what) {
  return Error(ErrorCode::weights_mismatch, what).key(kAdapterKey);
}

// Whether a file's name for a module is one of a weight that could have an adapter.
bool has_weight(const ModelOutline& outline, std::string_view linear) {
  if (!linear.starts_with(kPeftPrefix)) return false;
  linear.remove_prefix(kPeftPrefix.size());
  for (const ParameterOutline& p : outline.parameters) {
    if (low_rank_factor(p.name)) continue;
    const std::vector<std::string> names = names_in_files(outline.architecture, p);
    if (std::any_of(names.begin(), names.end(),
                    [&](const std::string& name) { return module_of(name) == linear; }))
      return true;
  }
  return false;
}

// What peft trained beyond these adapters would be lost.
void check_all_taken(const WeightFolder& file, const std::string& folder,
                     const ModelOutline& outline) {
  std::set<std::string> taken;
  for (const ParameterOutline& p : outline.parameters)
    if (low_rank_factor(p.name))
      for (const std::string& name : adapter_names_in_files(outline.architecture, p))
        taken.insert(name);
  for (const std::string& name : file.names()) {
    if (taken.contains(name)) continue;
    const std::optional<LowRankFactor> factor = low_rank_factor(name);
    throw adapters_mismatch(folder + " has the tensor \"" + name +
                            "\", which no adapter of this job takes")
        .help(factor && has_weight(outline, factor->linear) ? kTheirTargets : kOtherModel);
  }
}

const TensorEntry* found_in(const WeightFolder& file, const ModelOutline& outline,
                            const ParameterOutline& factor) {
  for (const std::string& name : adapter_names_in_files(outline.architecture, factor))
    if (const TensorEntry* entry = file.find(name); entry != nullptr) return entry;
  return nullptr;
}

Error not_there(const WeightFolder& file, const std::string& folder, const ModelOutline& outline,
                const ParameterOutline& factor) {
  const LowRankFactor which = *low_rank_factor(factor.name);
  const ParameterOutline* other =
      outline.find_parameter(std::string(which.linear) + "." +
                             std::string(which.out ? kFactorIn : kFactorOut) + ".weight");
  const bool half = other != nullptr && found_in(file, outline, *other) != nullptr;
  return adapters_mismatch(folder + " has no tensor \"" +
                           adapter_names_in_files(outline.architecture, factor)[0] +
                           "\", which an adapter of this job needs")
      .help(half ? "it has the other factor of that adapter alone: save or copy it again"
                 : kTheirTargets);
}

Error other_shape(const TensorEntry& entry, const ParameterOutline& factor) {
  const size_t rank = low_rank_factor(factor.name)->out ? 1 : 0;
  Error error = adapters_mismatch(entry.file->path() + ": \"" + entry.name + "\" has the shape " +
                                  report::shape_text(entry.shape) + ", the adapter of this job " +
                                  report::shape_text(factor.shape));
  if (entry.shape.size() != 2 || entry.shape[1 - rank] != factor.shape[1 - rank])
    return error.help(kOtherModel);
  return error
      .help("its r is " + std::to_string(entry.shape[rank]) + ", not the " +
            std::to_string(factor.shape[rank]) +
            " of adapter_config.json and of lora.r or lora.rank_pattern")
      .help(kOneSave);
}

}  // namespace

std::vector<std::string> adapter_names_in_files(std::string_view architecture,
                                                const ParameterOutline& factor) {
  std::vector<std::string> out = names_in_files(architecture, factor);
  for (std::string& name : out) name.insert(0, kPeftPrefix);
  return out;
}

WeightFolder open_adapter_tensors(const std::string& folder, const ModelOutline& outline) try {
  const std::filesystem::path path = std::filesystem::path(folder) / kAdapterWeights;
  if (std::error_code failed; !std::filesystem::is_regular_file(path, failed))
    throw Error(ErrorCode::file_unreadable, "there is no " + path.string())
        .help("save the adapters as safetensors: peft's save_pretrained() does");
  WeightFolder file(path);
  check_all_taken(file, folder, outline);
  for (const ParameterOutline& p : outline.parameters) {
    if (!low_rank_factor(p.name)) continue;
    const TensorEntry* entry = found_in(file, outline, p);
    if (entry == nullptr) throw not_there(file, folder, outline, p);
    if (entry->shape != p.shape) throw other_shape(*entry, p);
    if (!is_floating(entry->dtype))
      throw adapters_mismatch(entry->file->path() + ": \"" + entry->name + "\" is " +
                              std::string(dtype_name(entry->dtype)) + ", not of a floating type")
          .help("save the adapters in float32");
  }
  return file;
} catch (Error& error) {
  throw error.key(kAdapterKey).help("set lora.adapter = \"none\" to begin with new adapters");
}

}  // namespace meshwright::weights
