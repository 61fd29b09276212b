// What grouped_product.h is given.
#pragma once

namespace meshwright::kernels {

// Of each group g of rows [bounds[g], bounds[g + 1]), in float32: its rows of out [rows, width] =
// scale * a [rows, inner] b_g, b [groups, inner, width] by its strides; with `sums_rows` out_g =
// scale * a^T b of its rows, a [rows, height], b [rows, width], out [groups, height, width]. With
// `add` that is added to out. Rows behind the last bound are neither read nor written.
struct GroupedProduct {
  static constexpr int kTile = 64, kDepth = 16, kStride = kTile + 4;  // 4: other banks of memory
  static constexpr int kFloats = 2 * kDepth * kStride;                // that a block shares
  const float *a, *b;
  float* out;
  const int* bounds;
  long long rows, height = 0, width, inner = 0;
  long long b_inner, b_column;
  int groups, sums_rows = 0;
  float scale = 1;
  int add = 0;
};

}  // namespace meshwright::kernels
