#include "engine/checkpoint/weights/model_tensors.h"

#include <algorithm>
#include <boost/json/value.hpp>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "engine/checkpoint/weights/read_region.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "meshwright/error.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/files/json_codec.h"
#include "sdk/base/low_rank.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/words.h"

namespace meshwright::weights {

namespace {

constexpr const char* kKey = "model.pretrained";
constexpr const char* kHead = "lm_head.weight";

// "quantization_config.quant_method = fp8"; "": the folder's config.json says nothing of the kind.
std::string quantized(const std::string& folder) try {
  const boost::json::value config =
      base::parse_strictly(base::read_file(std::filesystem::path(folder) / "config.json", 16 << 20),
                           {.depth = 32, .elements = 1 << 20});
  const boost::json::value* how =
      config.is_object() ? config.as_object().if_contains("quantization_config") : nullptr;
  if (how == nullptr || !how->is_object()) return "";
  const boost::json::value* method = how->as_object().if_contains("quant_method");
  return method != nullptr && method->is_string()
             ? "quantization_config.quant_method = \"" + std::string(method->as_string()) + "\""
             : "quantization_config";
} catch (const base::JsonProblem&) {
  return "";  // told where the model is planned
}

Error no_fit(const std::string& what) { return Error(ErrorCode::weights_mismatch, what).key(kKey); }

void check_type(const TensorEntry& entry) {
  if (is_floating(entry.dtype)) return;
  throw no_fit(entry.file->path() + ": \"" + entry.name + "\" is " +
               std::string(dtype_name(entry.dtype)) + ", wanted is a floating-point dtype")
      .help(kNotQuantized);
}

void check_parameter(const WeightFolder& files, const std::string& folder,
                     const ModelOutline& outline, const ParameterOutline& parameter) {
  if (auto experts = expert_tensors(outline.architecture, parameter.name);
      experts && fits(*experts, parameter.shape)) {
    for (const TensorEntry* entry : find_experts(files, folder, *experts, parameter.shape))
      check_type(*entry);
    return;
  }
  std::vector<int64_t> shape = parameter.shape;
  if (parameter.stored.transposed) std::reverse(shape.begin(), shape.end());
  check_type(find_tensor(files, folder, names_in_files(outline.architecture, parameter), shape));
}

// The weight of the embedding, as the folder has it; nullptr: none is known.
const TensorEntry* embedding_in(const WeightFolder& files, const ModelOutline& outline) {
  for (const ParameterOutline& p : outline.parameters) {
    const ModuleOutline* module = outline.find_module(p.name.substr(0, p.name.rfind('.')));
    if (module == nullptr || module->kind != ModuleKind::embedding) continue;
    return files.find(name_in(files, outline.architecture, p));
  }
  return nullptr;
}

bool same_values(const TensorEntry& a, const TensorEntry& b) {
  if (a.shape != b.shape) return false;
  a.file->check_size();
  b.file->check_size();
  if (a.dtype == b.dtype) return std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes)) == 0;
  if (!is_floating(a.dtype) || !is_floating(b.dtype)) return false;
  constexpr int64_t kPiece = 1 << 18;
  TensorEntry flat[2] = {a, b};
  const int64_t count = a.bytes / dtype_size(a.dtype);
  for (TensorEntry& one : flat) one.shape = {count};
  std::vector<float> values[2];
  for (int64_t at = 0, size = 0; at < count; at += size) {
    size = std::min(count - at, kPiece);
    for (int i : {0, 1}) {
      values[i].resize(static_cast<size_t>(size));
      read_slice(flat[i], std::span(&at, 1), std::span(&size, 1), DType::float32, values[i].data());
    }
    if (std::memcmp(values[0].data(), values[1].data(), values[0].size() * sizeof(float)) != 0)
      return false;
  }
  return true;
}

}  // namespace

WeightFolder open_model_tensors(const std::string& folder, const ModelOutline& outline) try {
  WeightFolder files(folder);
  for (const ParameterOutline& p : outline.parameters)
    if (!low_rank_factor(p.name)) check_parameter(files, folder, outline, p);
  return files;
} catch (Error& error) {
  const std::string how = quantized(folder);
  if (how.empty()) throw error.key(kKey);
  throw Error(error.code(), error.message())
      .key(kKey)
      .note((std::filesystem::path(folder) / "config.json").string() +
            " says that the weights are "
            "quantized: " +
            how)
      .help(kNotQuantized);
}

void check_tied_head(const WeightFolder& files, const std::string& folder,
                     const ModelOutline& outline) {
  const TensorEntry *head = outline.tied_embeddings ? files.find(kHead) : nullptr,
                    *embedding = head == nullptr ? nullptr : embedding_in(files, outline);
  if (embedding == nullptr || same_values(*head, *embedding)) return;
  throw no_fit(head->file->path() + ": \"" + kHead + "\" has other values than \"" +
               embedding->name +
               "\", and tie_word_embeddings = true makes the two one: the head "
               "would be lost")
      .help("set \"tie_word_embeddings\": false in " +
            (std::filesystem::path(folder) / "config.json").string() +
            ": the model has a head of its own then, as transformers 5 reads it")
      .help("remove the tensor from the folder where the embedding is the head");
}

std::string unused_tensors(const WeightFolder& files, const std::string& folder,
                           const ModelOutline& outline) {
  std::set<std::string> used;
  for (const ParameterOutline& p : outline.parameters) {
    used.insert(p.name);
    for (const std::string& name : names_in_files(outline.architecture, p)) used.insert(name);
    auto experts = expert_tensors(outline.architecture, p.name);
    if (!experts) continue;
    used.insert(experts->grouped);
    for (int64_t e = 0; e < p.shape[0]; ++e)
      for (size_t part = 0; part < experts->parts.size(); ++part)
        used.insert(experts->name(e, part));
  }
  // It has the embedding's values: check_tied_head().
  if (outline.tied_embeddings) used.insert(kHead);
  std::vector<std::string> left;
  for (const std::string& name : files.names())
    if (!used.contains(name) && !name.ends_with("rotary_emb.inv_freq"))
      left.push_back(name);  // that is computed
  if (left.empty()) return {};
  return folder + " has " + text::counted(std::ssize(left), "tensor") +
         " without a place in the model of its config.json, not read: " + text::first_few(left, 3);
}

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
