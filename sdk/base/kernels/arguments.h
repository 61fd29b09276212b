// What kernels of our own are given (kernels.h). A float is one of the three types that a kernel's
// name ends with; rows lie one after another unless a stride says otherwise. Strides and sizes are
// numbers of elements.
#pragma once

namespace meshwright::kernels {

constexpr int kBlock = 256;  // threads of a block, of every kernel

struct BFloat16 {
  unsigned short bits;
};
struct Half {
  unsigned short bits;
};

// What a kernel reads beside elements of its own type.
enum Kind { same, bfloat16, half };

// y = weight * round(x * rstd), with rstd = 1 / sqrt(mean(x^2) + epsilon) of each row; with
// `plus_one` it is round(x * rstd * (1 + weight)). With `added`, x + added is normalised and kept
// in `sum`; elements of `added` are of its kind.
struct RmsNorm {
  const void *x, *added = nullptr, *weight;
  void *sum = nullptr, *y;
  float* rstd;
  long long rows, size;
  float epsilon;
  int plus_one;
  Kind kind_of_added = same;
};
// The gradient of x, to which that of `sum` is added where it is given, and of each team's rows the
// part of the weight's: [teams, size]. `to_added`: the first once more, rounded to another kind.
struct RmsNormBackward {
  const void *x, *weight, *grad, *grad_of_sum = nullptr;
  const float* rstd;
  void *to_x, *to_added = nullptr;
  float* to_weight;
  long long rows, size;
  int plus_one;
  Kind kind_of_added = same;
};
// out[i] = the sum of parts[., i]
struct SumRows {
  const float* parts;
  void* out;
  long long rows, size;
};

// out[i] = the sum of parts[.][i] in float32, from the last part on
struct SumWide {
  static constexpr int kMost = 4;
  const void* parts[kMost];
  int count;
  float* out;
  long long size;
};

// Rows that stand among those of `in`, before its row `first`: named[0], named[1], ... of `rows`.
struct Inserted {
  const void* rows = nullptr;
  const long long* named = nullptr;
  long long of = 0, first = 0, count = 0;  // of: rows of `rows`
};
// out[i] = in[rows[i]] of rows of `size`, zeros where that is -1; with `wide`, `in` is float32.
// Strides of 0 are `size`.
struct TakeRows {
  const void* in;
  const long long* rows;
  void* out;
  long long of, count, size;  // of: rows of `in`
  int wide = 0;
  long long in_stride = 0, out_stride = 0;
  Inserted among = {};
};
// out[t] = the sum of in[place[t, j]] for the `most` places of t, in their order in float32,
// without those at -1; with `wide`, `out` is float32
struct CombineRows {
  const void* in;
  const long long* place;
  void* out;
  long long of, count, size;
  int most, wide = 0;
  long long in_stride = 0;
  Inserted among = {};
};

// out = silu(gate) * up
struct SiluTimes {
  const void *gate, *up;
  void* out;
  long long rows, size, gate_stride, up_stride;
};
struct SiluTimesBackward {
  const void *gate, *up, *grad;
  void *to_gate, *to_up;
  long long rows, size, gate_stride, up_stride;
};

// out = silu(gate) * up * weight of each row, with gate and up the halves of a row of h
// [rows, 2 size], without rounding between.
struct WeightedSwiglu {
  const void* h;
  const float* weights;
  void* out;
  long long rows, size;
};
// And `weighted` is that once more.
struct WeightedSwigluBackward {
  const void *h, *grad;
  const float* weights;
  void *to_h, *weighted;
  float* to_weights;
  long long rows, size;
};

// Turns the pairs (i, i + dim / 2) of each head by the angles of its row; out is contiguous.
struct Heads {
  const void* in;
  void* out;
  long long batch_stride, row_stride, head_stride;
  int heads;
};
struct Rotate {
  Heads query, key;
  const void *cos, *sin;  // [batch, length, dim] with by_sample, otherwise [length, dim]
  long long batch, length;
  int size, dim, by_sample;
  int wide_angles;  // cos and sin are float32
  float direction;  // -1 turns back
};

// Of each row: the largest logit, the sum of exponentials below it, the target's logit or 0. The
// columns are the ids from `begin` on, of `vocabulary`. With `losses` the columns are all, and max
// and sum become what backward takes. `bad` is written for a target that is none.
struct CrossEntropy {
  const void* logits;
  const long long* targets;
  float *max, *sum, *picked;
  double* losses = nullptr;
  long long* bad;
  long long rows, columns, stride, begin, vocabulary, ignore;
};
// out = (exp(x - shift) * inverse - one_hot(target)) * grad; it may be the logits.
struct CrossEntropyBackward {
  const void* logits;
  const long long* targets;
  const float *shift, *inverse, *grad;
  void* out;
  long long rows, columns, stride, begin, ignore;
};

// What grouped_product.h is given.

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
