// Sizes in which rows of experts come: memory for them, and products that are compiled for a size.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace meshwright {

// Steps between two powers of two.
inline constexpr int64_t kStepsOfMemory = 8, kStepsOfProducts = 16;

// What n, not negative, is rounded up to a multiple of: at least 8.
inline int64_t row_step(int64_t n, int64_t steps) {
  return std::max<int64_t>(8,
                           static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n))) / steps);
}

}  // namespace meshwright
