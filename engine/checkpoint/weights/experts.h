// Mixture-of-experts weights at the border: in memory and checkpoints all experts of a layer lie in
// one tensor, input-major (semantics 10.1); Hugging Face's files hold one Linear per expert.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/dtype.h"

namespace meshwright::weights {

struct TensorEntry;
class WeightFolder;

// How files hold a tensor [experts, in, parts * out].
struct ExpertTensors {
  std::string prefix;  // "model.layers.0.block_sparse_moe.experts."
  std::vector<std::string>
      parts;            // "w1", "w3": expert e's is prefix + e + "." + part + ".weight", [out, in]
  std::string grouped;  // transformers' own form in memory, [experts, parts * out, in]; read where
                        // a folder has it
  std::string name(int64_t expert, size_t part) const {
    return prefix + std::to_string(expert) + "." + parts[part] + ".weight";
  }
};
// How files hold a parameter of a model of that architecture; nullopt: as it is, under file_name().
std::optional<ExpertTensors> expert_tensors(std::string_view architecture,
                                            std::string_view parameter);
// "model.layers.0.mlp.gate.weight" of Mixtral is "model.layers.0.block_sparse_moe.gate.weight".
std::string file_name(std::string_view architecture, std::string_view parameter);
// The first tensor that files hold of a parameter: its dtype is the parameter's.
std::string first_file_name(std::string_view architecture, std::string_view parameter);

// Whether a tensor of that shape can be made of `parts` Linears per expert.
bool fits(const ExpertTensors& tensors, std::span<const int64_t> shape);

// The tensors that hold them, each of the shape that it must have. Throws as read_experts().
std::vector<const TensorEntry*> find_experts(const WeightFolder& folder, const std::string& path,
                                             const ExpertTensors& tensors,
                                             std::span<const int64_t> shape);

// Reads the box [offsets, offsets + sizes) of a parameter of `shape`, or elements [begin, end) of
// it flattened, touching only those bytes of the files. Throws Error(weights_mismatch) for tensors
// that are not there or of another shape.
void read_experts(const WeightFolder& folder, const std::string& path, const ExpertTensors& tensors,
                  std::span<const int64_t> shape, std::span<const int64_t> offsets,
                  std::span<const int64_t> sizes, DType target, void* out);
void read_experts_run(const WeightFolder& folder, const std::string& path,
                      const ExpertTensors& tensors, std::span<const int64_t> shape, int64_t begin,
                      int64_t end, DType target, void* out);

// from [rows, columns] to [columns, rows], whose rows lie `stride` elements apart.
void transpose(const std::byte* from, int64_t rows, int64_t columns, int64_t element, std::byte* to,
               int64_t stride);

}  // namespace meshwright::weights
