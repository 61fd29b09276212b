#include "engine/modules/attention_kernel.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "sdk/base/exponential.h"

namespace meshwright::modules {

#if defined(__x86_64__)
namespace {

#define MESHWRIGHT_AVX512 __attribute__((target("arch=x86-64-v4"), optimize("O3")))
#define MESHWRIGHT_INLINE inline __attribute__((always_inline))

constexpr int64_t kLanes = 16, kPanel = 2 * kLanes,
                  kBlock = 32;  // keys of a panel, queries of a block

using Lanes = float __attribute__((vector_size(64)));
using LooseLanes = float __attribute__((vector_size(64), aligned(4), may_alias));

// c[R, 16 W] (+)= a[R, depth] b[depth, 16 W]; a may be transposed, as its two strides say.
template <int R, int W>
MESHWRIGHT_INLINE void tile(int64_t depth, const float* a, int64_t a_row, int64_t a_depth,
                            const float* b, int64_t b_depth, float* c, int64_t c_row, bool add) {
  Lanes sum[R][W];
  for (int r = 0; r < R; ++r)
    for (int w = 0; w < W; ++w)
      sum[r][w] = add ? *reinterpret_cast<const LooseLanes*>(c + r * c_row + w * kLanes) : Lanes{};
  for (int64_t k = 0; k < depth; ++k) {
    Lanes row[W];
    for (int w = 0; w < W; ++w)
      row[w] = *reinterpret_cast<const LooseLanes*>(b + k * b_depth + w * kLanes);
    for (int r = 0; r < R; ++r) {
      float factor = a[r * a_row + k * a_depth];
      for (int w = 0; w < W; ++w) sum[r][w] += factor * row[w];
    }
  }
  for (int r = 0; r < R; ++r)
    for (int w = 0; w < W; ++w)
      *reinterpret_cast<LooseLanes*>(c + r * c_row + w * kLanes) = sum[r][w];
}

template <int W>
MESHWRIGHT_INLINE void tiles(int64_t rows, int64_t depth, const float* a, int64_t a_row,
                             int64_t a_depth, const float* b, int64_t b_depth, float* c,
                             int64_t c_row, bool add) {
  int64_t r = 0;
  for (; r + 8 <= rows; r += 8)
    tile<8, W>(depth, a + r * a_row, a_row, a_depth, b, b_depth, c + r * c_row, c_row, add);
  if (r + 4 <= rows)
    tile<4, W>(depth, a + r * a_row, a_row, a_depth, b, b_depth, c + r * c_row, c_row, add), r += 4;
  for (; r < rows; ++r)
    tile<1, W>(depth, a + r * a_row, a_row, a_depth, b, b_depth, c + r * c_row, c_row, add);
}

// Any number of columns that is a multiple of 16.
MESHWRIGHT_AVX512 void multiply(int64_t rows, int64_t columns, int64_t depth, const float* a,
                                int64_t a_row, int64_t a_depth, const float* b, int64_t b_depth,
                                float* c, int64_t c_row, bool add) {
  int64_t n = 0;
  for (; n + kPanel <= columns; n += kPanel)
    tiles<2>(rows, depth, a, a_row, a_depth, b + n, b_depth, c + n, c_row, add);
  if (n < columns) tiles<1>(rows, depth, a, a_row, a_depth, b + n, b_depth, c + n, c_row, add);
}

// Rows of keys as panels [length / 32][head_dim][32], zeros behind the last key.
void pack(const AttentionSizes& s, HeadView rows, std::vector<float>& panels) {
  int64_t count = (s.length + kPanel - 1) / kPanel;
  panels.assign(static_cast<size_t>(count * kPanel * s.head_dim), 0.0F);
  for (int64_t j = 0; j < s.length; ++j) {
    float* to = panels.data() + j / kPanel * kPanel * s.head_dim + j % kPanel;
    const float* from = rows.data + j * rows.row;
    for (int64_t d = 0; d < s.head_dim; ++d) to[d * kPanel] = from[d];
  }
}

// The part of a block's products that is not masked: queries [first, first + rows), keys [begin,
// end), both multiples of 32.
struct Block {
  int64_t first, rows, begin, end;
  int64_t width() const { return end - begin; }
};
Block block_at(const AttentionSizes& s, int64_t first) {
  int64_t begin = s.window > 0 ? std::max<int64_t>(0, first - s.window + 1) / kPanel * kPanel : 0;
  return {first, std::min(kBlock, s.length - first), begin, first + kBlock};
}

// out[rows, width] = rows of `left` times the packed keys of the block.
MESHWRIGHT_AVX512 void times_keys(const AttentionSizes& s, const Block& b, const float* left,
                                  int64_t left_row, const float* panels, float* out) {
  for (int64_t j = b.begin; j < b.end; j += kPanel)
    multiply(b.rows, kPanel, s.head_dim, left, left_row, 1, panels + j * s.head_dim, kPanel,
             out + (j - b.begin), b.width(), false);
}

// First and last key that a query sees, as columns of the block.
MESHWRIGHT_INLINE void seen(const AttentionSizes& s, const Block& b, int64_t row, int64_t& from,
                            int64_t& to) {
  to = b.first + row + 1 - b.begin;
  from = s.window > 0 ? std::max<int64_t>(0, to - s.window) : 0;
}

// Scores of a query to probabilities, not yet divided by their sum. Columns it does not see become
// zero.
MESHWRIGHT_AVX512 void softmax_row(float* __restrict p, int64_t from, int64_t to, int64_t width,
                                   float scale, float& top, float& sum) {
  float most[kLanes], total[kLanes] = {};
  std::fill(most, most + kLanes, p[from]);
  int64_t i = from;
  for (; i + kLanes <= to; i += kLanes)
    for (int64_t l = 0; l < kLanes; ++l) most[l] = p[i + l] > most[l] ? p[i + l] : most[l];
  for (; i < to; ++i) most[0] = std::max(most[0], p[i]);
  float m = most[0];
  for (float x : most) m = std::max(m, x);
  for (i = from; i + kLanes <= to; i += kLanes)
    for (int64_t l = 0; l < kLanes; ++l) {
      float e = exponential((p[i + l] - m) * scale);
      p[i + l] = e;
      total[l] += e;
    }
  for (; i < to; ++i) total[0] += p[i] = exponential((p[i] - m) * scale);
  std::fill(p, p + from, 0.0F);
  std::fill(p + to, p + width, 0.0F);
  double all = 0;
  for (float x : total) all += static_cast<double>(x);
  top = m * scale;
  sum = static_cast<float>(all);
}

MESHWRIGHT_AVX512 void probabilities_row(float* __restrict p, int64_t from, int64_t to,
                                         int64_t width, float scale, float log_sum) {
  for (int64_t i = from; i < to; ++i) p[i] = exponential(p[i] * scale - log_sum);
  std::fill(p, p + from, 0.0F);
  std::fill(p + to, p + width, 0.0F);
}

// Gradient of the scores from that of the probabilities: p (g - sum(p g)) scale.
MESHWRIGHT_AVX512 void scores_row(const float* __restrict p, float* __restrict g, int64_t width,
                                  float mean, float scale) {
  for (int64_t i = 0; i < width; ++i) g[i] = p[i] * (g[i] - mean) * scale;
}

MESHWRIGHT_AVX512 void scale_row(float* __restrict row, int64_t size, float factor) {
  for (int64_t i = 0; i < size; ++i) row[i] *= factor;
}

MESHWRIGHT_AVX512 float dot(const float* __restrict a, const float* __restrict b, int64_t size) {
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < size; i += kLanes)
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] += a[i + l] * b[i + l];
  float sum = 0;
  for (float x : lanes) sum += x;
  return sum;
}

struct Scratch {
  std::vector<float> keys, values, left, right;
};
Scratch& scratch() {
  static thread_local Scratch kept;
  return kept;
}
float* room(std::vector<float>& memory, int64_t size) {
  if (memory.size() < static_cast<size_t>(size)) memory.resize(static_cast<size_t>(size));
  return memory.data();
}

}  // namespace

bool attention_kernel_available(int64_t head_dim) {
  return head_dim % kLanes == 0 && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd");
}

void attention_forward(const AttentionSizes& s, HeadView query, HeadView key, HeadView value,
                       MutableHeadView out, float* log_sum) {
  Scratch& memory = scratch();
  pack(s, key, memory.keys);
  for (int64_t h = 0; h < s.group; ++h)
    for (int64_t first = 0; first < s.length; first += kBlock) {
      Block b = block_at(s, first);
      float* p = room(memory.left, kBlock * b.width());
      float sums[kBlock];
      times_keys(s, b, query.data + h * query.head + first * query.row, query.row,
                 memory.keys.data(), p);
      for (int64_t r = 0; r < b.rows; ++r) {
        int64_t from, to;
        float top;
        seen(s, b, r, from, to);
        softmax_row(p + r * b.width(), from, to, b.width(), s.scale, top, sums[r]);
        log_sum[h * s.length + first + r] = top + std::log(sums[r]);
      }
      float* o = out.data + h * out.head + first * out.row;
      int64_t depth = std::min(b.end, s.length) - b.begin;
      multiply(b.rows, s.head_dim, depth, p, b.width(), 1, value.data + b.begin * value.row,
               value.row, o, out.row, false);
      for (int64_t r = 0; r < b.rows; ++r) scale_row(o + r * out.row, s.head_dim, 1 / sums[r]);
    }
}

void attention_backward(const AttentionSizes& s, HeadView query, HeadView key, HeadView value,
                        HeadView out, const float* log_sum, HeadView grad, MutableHeadView to_query,
                        MutableHeadView to_key, MutableHeadView to_value) {
  Scratch& memory = scratch();
  pack(s, key, memory.keys);
  pack(s, value, memory.values);
  for (int64_t h = 0; h < s.group; ++h)
    for (int64_t first = 0; first < s.length; first += kBlock) {
      Block b = block_at(s, first);
      int64_t width = b.width(), keys = std::min(b.end, s.length) - b.begin;
      float *p = room(memory.left, kBlock * width), *g = room(memory.right, kBlock * width);
      const float *q = query.data + h * query.head + first * query.row,
                  *d = grad.data + h * grad.head + first * grad.row;
      const float* o = out.data + h * out.head + first * out.row;
      times_keys(s, b, q, query.row, memory.keys.data(), p);
      times_keys(s, b, d, grad.row, memory.values.data(), g);
      for (int64_t r = 0; r < b.rows; ++r) {
        int64_t from, to;
        seen(s, b, r, from, to);
        probabilities_row(p + r * width, from, to, width, s.scale,
                          log_sum[h * s.length + first + r]);
        scores_row(p + r * width, g + r * width, width,
                   dot(d + r * grad.row, o + r * out.row, s.head_dim), s.scale);
      }
      multiply(b.rows, s.head_dim, keys, g, width, 1, key.data + b.begin * key.row, key.row,
               to_query.data + h * to_query.head + first * to_query.row, to_query.row, false);
      // Keys of this block's own positions are met for the first time.
      auto spread = [&](const float* weights, const float* rows, int64_t row, MutableHeadView to) {
        int64_t old = first - b.begin;
        multiply(old, s.head_dim, b.rows, weights, 1, width, rows, row, to.data + b.begin * to.row,
                 to.row, true);
        multiply(keys - old, s.head_dim, b.rows, weights + old, 1, width, rows, row,
                 to.data + first * to.row, to.row, h > 0);
      };
      spread(p, d, grad.row, to_value);
      spread(g, q, query.row, to_key);
    }
}

#else

bool attention_kernel_available(int64_t) { return false; }
void attention_forward(const AttentionSizes&, HeadView, HeadView, HeadView, MutableHeadView,
                       float*) {}
void attention_backward(const AttentionSizes&, HeadView, HeadView, HeadView, HeadView, const float*,
                        HeadView, MutableHeadView, MutableHeadView, MutableHeadView) {}

#endif

}  // namespace meshwright::modules
