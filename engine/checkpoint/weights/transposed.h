// Weights whose files have columns first: read as they lie in memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/outline.h"

namespace meshwright::weights {

struct TensorEntry;

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

}  // namespace meshwright::weights
