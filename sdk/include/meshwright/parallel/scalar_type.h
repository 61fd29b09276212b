// The planning half's element types as LibTorch's.
#pragma once

#include <c10/core/ScalarType.h>

#include "meshwright/dtype.h"

namespace meshwright {

MESHWRIGHT_API at::ScalarType scalar_type(DType dtype);
// The same back. Throws Error(bad_module) for a type that has no DType.
MESHWRIGHT_API DType dtype_of(at::ScalarType type);

}  // namespace meshwright
