// Any part of a parameter out of the files of a model, as it lies in memory.
#pragma once

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
struct ExpertTensors;

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
