#include "engine/checkpoint/weights/read_region.h"

#include <cstddef>

#include "engine/checkpoint/weights/experts.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "engine/checkpoint/weights/transposed.h"
#include "engine/models/fused_rows.h"

namespace meshwright::weights {

void read_fused_slice(const TensorEntry& tensor, const FusedRows& fused,
                      std::vector<int64_t> offsets, std::vector<int64_t> sizes, DType target,
                      void* out) {
  int64_t begin = offsets.at(0), row = dtype_size(target);
  for (size_t d = 1; d < sizes.size(); ++d) row *= sizes[d];
  for (const RowRun& run : runs_of_memory(fused, begin, begin + sizes.at(0))) {
    offsets[0] = run.file;
    sizes[0] = run.count;
    read_slice(tensor, offsets, sizes, target,
               static_cast<std::byte*>(out) + (run.memory - begin) * row);
  }
}

void read_region(const TensorEntry& tensor, std::span<const int64_t> shape,
                 const std::optional<FusedRows>& fused, bool transposed, const Region& region,
                 DType target, void* out) {
  if (region.flat()) {  // a run of the flattened parameter
    if (transposed)
      return read_transposed_run(tensor, fused, shape, region.begin, region.end, target, out);
    const int64_t begin = region.begin, count = region.end - region.begin;
    TensorEntry flat = tensor;
    flat.shape = {element_count({shape.begin(), shape.end()})};
    if (fused)
      return read_fused_slice(flat, fused_elements(*fused, shape), {begin}, {count}, target, out);
    return read_slice(flat, std::span(&begin, 1), std::span(&count, 1), target, out);
  }
  auto* memory = static_cast<std::byte*>(out);
  for (const Region& box : as_boxes(region, shape)) {
    if (transposed)
      read_transposed(tensor, fused, box.offsets, box.sizes, target, memory);
    else if (fused)
      read_fused_slice(tensor, *fused, box.offsets, box.sizes, target, memory);
    else
      read_slice(tensor, box.offsets, box.sizes, target, memory);
    memory += box.count() * dtype_size(target);
  }
}

void read_region_of_experts(const WeightFolder& folder, const std::string& path,
                            const ExpertTensors& experts, std::span<const int64_t> shape,
                            const Region& region, DType target, void* out) {
  if (region.flat())
    return read_experts_run(folder, path, experts, shape, region.begin, region.end, target, out);
  auto* memory = static_cast<std::byte*>(out);
  for (const Region& box : as_boxes(region, shape)) {
    read_experts(folder, path, experts, shape, box.offsets, box.sizes, target, memory);
    memory += box.count() * dtype_size(target);
  }
}

std::string name_in(const WeightFolder& folder, std::string_view architecture,
                    const ParameterOutline& parameter) {
  std::vector<std::string> names = names_in_files(architecture, parameter);
  if (const std::optional<ExpertTensors> experts = expert_tensors(architecture, parameter.name))
    names = {experts->name(0, 0), experts->grouped};
  for (std::string& name : names)
    if (folder.find(name) != nullptr) return std::move(name);
  return "";
}

}  // namespace meshwright::weights
