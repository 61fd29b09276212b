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
#include "meshwright/outline.h"
#include "meshwright/region.h"

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

// Weights whose files have columns first: read as they lie in memory.

// The box [offsets, offsets + sizes) of a weight [rows, columns] in memory, of a file's tensor
// [columns, rows]; with `fused` its columns are those parts, each whole.
void read_transposed(const TensorEntry& tensor, const std::optional<FusedRows>& fused,
                     std::span<const int64_t> offsets, std::span<const int64_t> sizes, DType target,
                     void* out);
// Elements [begin, end) of the flattened weight, `shape` as in memory.
void read_transposed_run(const TensorEntry& tensor, const std::optional<FusedRows>& fused,
                         std::span<const int64_t> shape, int64_t begin, int64_t end, DType target,
                         void* out);

// Names under which files may have a parameter, the one that an export gives it first.
std::vector<std::string> names_in_files(std::string_view architecture,
                                        const ParameterOutline& parameter);
// The first of these names that is there. Throws Error(weights_mismatch) where none is, or it has
// another shape.
const TensorEntry& find_tensor(const WeightFolder& folder, const std::string& path,
                               std::span<const std::string> names, std::span<const int64_t> shape);

// Any part of a parameter out of the files of a model, as it lies in memory.

// Reads `region` of a parameter of that shape in memory, converted to `target`, touching only those
// bytes of the file. `tensor` has the same shape, with `transposed` turned; `fused`: the
// parameter's rows in memory. Throws what read_slice() throws.
void read_region(const TensorEntry& tensor, std::span<const int64_t> shape,
                 const std::optional<FusedRows>& fused, bool transposed, const Region& region,
                 DType target, void* out);
// read_slice() of a fused weight in the order of memory. Where `tensor` is flattened, `fused` is of
// elements.
void read_fused_slice(const TensorEntry& tensor, const FusedRows& fused,
                      std::vector<int64_t> offsets, std::vector<int64_t> sizes, DType target,
                      void* out);
// Of experts, which files hold one by one. Throws what read_experts() throws.
void read_region_of_experts(const WeightFolder& folder, const std::string& path,
                            const ExpertTensors& experts, std::span<const int64_t> shape,
                            const Region& region, DType target, void* out);

// The tensor by which a folder holds a parameter: the first of its names that is there; of experts
// one by one the first expert's. "": none.
std::string name_in(const WeightFolder& folder, std::string_view architecture,
                    const ParameterOutline& parameter);

}  // namespace meshwright::weights
