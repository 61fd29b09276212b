// What a safetensors file may have; writers keep to it, readers refuse more.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sdk/base/files/strict_json.h"

namespace meshwright::weights {

inline constexpr int64_t kMaxHeader = 100 << 20;
inline constexpr size_t kMaxDims = 16;
inline constexpr base::JsonBounds kHeaderBounds{.depth = 3, .elements = kMaxDims};

}  // namespace meshwright::weights
