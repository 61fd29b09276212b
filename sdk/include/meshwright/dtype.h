// Element types by name, for planning without LibTorch's headers.
#pragma once

#include <cstdint>
#include <string_view>

#include "meshwright/export.h"

namespace meshwright {

enum class DType : uint8_t {
  float32,
  float64,
  float16,
  bfloat16,
  int8,
  int16,
  int32,
  int64,
  boolean
};

// Accepts PyTorch's names and short forms ("bf16", "half", "torch.float32"); throws
// Error(bad_dtype) with the known names.
MESHWRIGHT_API DType parse_dtype(std::string_view name);
// PyTorch's name: "bfloat16".
MESHWRIGHT_API std::string_view dtype_name(DType dtype);
// Bytes of one element.
MESHWRIGHT_API int64_t dtype_size(DType dtype);

}  // namespace meshwright
