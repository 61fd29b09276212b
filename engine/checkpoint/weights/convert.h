// Floating element types turned into each other as PyTorch does (round to nearest even; float64 to
// a narrow type by way of float32).
#pragma once

#include <cstddef>
#include <cstdint>

#include "meshwright/dtype.h"

namespace meshwright::weights {

bool is_floating(DType dtype);
// Neither side needs to be aligned; they may not overlap. Both are floating, or equal.
void convert_elements(const std::byte* from, DType from_type, std::byte* to, DType to_type,
                      int64_t count);

}  // namespace meshwright::weights
