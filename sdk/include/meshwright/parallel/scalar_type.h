// The planning half's element types as LibTorch's.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "meshwright/dtype.h"

namespace meshwright {

MESHWRIGHT_API at::ScalarType scalar_type(DType dtype);
// The same back; nullopt for a type that has no DType.
MESHWRIGHT_API std::optional<DType> find_dtype(at::ScalarType type);
// Throws Error(bad_module) for a type that has no DType.
MESHWRIGHT_API DType dtype_of(at::ScalarType type);

}  // namespace meshwright
