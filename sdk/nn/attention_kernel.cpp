#include "attention_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "attention_kernel_targets.h"
#include "sdk/base/vectorised.h"

namespace meshwright {
namespace {

AttentionTarget chosen(AttentionTarget asked) {
  static const AttentionTarget best = attention_targets().back();
  return asked == AttentionTarget::kBest ? best : asked;
}

template <class T>
__attribute__((always_inline)) inline AttentionCompute<T> dot(const T* a, const T* b,
                                                              int64_t size) {
  using C = AttentionCompute<T>;
  constexpr int64_t kSums = 16;
  C sums[kSums] = {};
  int64_t i = 0;
  for (; i + kSums <= size; i += kSums)
    for (int64_t l = 0; l < kSums; ++l)
      sums[l] += static_cast<C>(a[i + l]) * static_cast<C>(b[i + l]);
  for (; i < size; ++i) sums[0] += static_cast<C>(a[i]) * static_cast<C>(b[i]);
  C sum = 0;
  for (C x : sums) sum += x;
  return sum;
}
template <class T>
__attribute__((always_inline)) inline void dots(HeadView<const T> a, HeadView<const T> b,
                                                int64_t count, int64_t size,
                                                AttentionCompute<T>* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = dot(a.data + i * a.row, b.data + i * b.row, size);
}
// A template cannot be cloned for targets.
MESHWRIGHT_VECTORISED void head_dots(HeadView<const float> a, HeadView<const float> b,
                                     int64_t count, int64_t size, float* to) {
  dots(a, b, count, size, to);
}
MESHWRIGHT_VECTORISED void head_dots(HeadView<const double> a, HeadView<const double> b,
                                     int64_t count, int64_t size, double* to) {
  dots(a, b, count, size, to);
}
MESHWRIGHT_VECTORISED void head_dots(HeadView<const c10::BFloat16> a,
                                     HeadView<const c10::BFloat16> b, int64_t count, int64_t size,
                                     float* to) {
  dots(a, b, count, size, to);
}

// out + weight (other - out)
MESHWRIGHT_VECTORISED void blend(float* __restrict out, const float* __restrict other, float weight,
                                 int64_t size) {
  for (int64_t i = 0; i < size; ++i) out[i] -= weight * (out[i] - other[i]);
}
MESHWRIGHT_VECTORISED void blend(double* __restrict out, const double* __restrict other,
                                 double weight, int64_t size) {
  for (int64_t i = 0; i < size; ++i) out[i] -= weight * (out[i] - other[i]);
}

}  // namespace

std::vector<AttentionTarget> attention_targets() {
  std::vector<AttentionTarget> found = {AttentionTarget::kBaseline};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("bmi"))
    found.push_back(AttentionTarget::kAvx2);
  if (found.size() == 2 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd"))
    found.push_back(AttentionTarget::kAvx512);
  if (found.size() == 3 && __builtin_cpu_supports("avx512bf16"))
    found.push_back(AttentionTarget::kAvx512Bf16);
#endif
  return found;
}

template <class T>
void attention_forward(const AttentionShape& shape, std::span<const QueryRun<T>> queries,
                       std::span<const KeyRun<T>> keys) {
  switch (chosen(shape.target)) {
#if defined(__x86_64__)
    case AttentionTarget::kAvx512Bf16:
      if constexpr (std::is_same_v<T, c10::BFloat16>)
        return attention::avx512_bf16::forward(shape, queries, keys);
      [[fallthrough]];
    case AttentionTarget::kAvx512:
      return attention::avx512::forward(shape, queries, keys);
    case AttentionTarget::kAvx2:
      return attention::avx2::forward(shape, queries, keys);
#endif
    default:
      return attention::baseline::forward(shape, queries, keys);
  }
}

template <class T>
void attention_backward(const AttentionShape& shape, std::span<const QueryRun<T>> queries,
                        std::span<const KeyRun<T>> keys) {
  switch (chosen(shape.target)) {
#if defined(__x86_64__)
    case AttentionTarget::kAvx512Bf16:
      if constexpr (std::is_same_v<T, c10::BFloat16>)
        return attention::avx512_bf16::backward(shape, queries, keys);
      [[fallthrough]];
    case AttentionTarget::kAvx512:
      return attention::avx512::backward(shape, queries, keys);
    case AttentionTarget::kAvx2:
      return attention::avx2::backward(shape, queries, keys);
#endif
    default:
      return attention::baseline::backward(shape, queries, keys);
  }
}

template <class T>
void attention_delta(int64_t head_dim, int64_t heads, int64_t count, HeadView<const T> out,
                     HeadView<const T> grad, RowView<AttentionCompute<T>> delta) {
  for (int64_t h = 0; h < heads; ++h)
    head_dots(HeadView<const T>{out.data + h * out.head, out.row, 0},
              HeadView<const T>{grad.data + h * grad.head, grad.row, 0}, count, head_dim,
              delta.data + h * delta.head);
}

// l' = log(e^l + e^lb), o' = o - sigmoid(lb - l) (o - ob). Where either saw nothing the other is
// kept as it is: differences of infinities are not numbers.
template <class C>
void attention_merge(int64_t head_dim, int64_t heads, int64_t count, HeadView<C> out,
                     RowView<C> lse, HeadView<const C> other, RowView<const C> other_lse) {
  constexpr C kNothing = -std::numeric_limits<C>::infinity();
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t i = 0; i < count; ++i) {
      C& mine = lse.data[h * lse.head + i];
      C theirs = other_lse.data[h * other_lse.head + i];
      if (theirs == kNothing) continue;
      C* o = out.data + h * out.head + i * out.row;
      const C* from = other.data + h * other.head + i * other.row;
      if (mine == kNothing) {
        std::copy(from, from + head_dim, o);
        mine = theirs;
        continue;
      }
      C less = std::exp(-std::abs(theirs - mine));  // of the smaller part, at most 1
      blend(o, from, (theirs > mine ? C{1} : less) / (1 + less), head_dim);
      mine = std::max(mine, theirs) + std::log1p(less);
    }
}

template void attention_merge<float>(int64_t, int64_t, int64_t, HeadView<float>, RowView<float>,
                                     HeadView<const float>, RowView<const float>);
template void attention_merge<double>(int64_t, int64_t, int64_t, HeadView<double>, RowView<double>,
                                      HeadView<const double>, RowView<const double>);

#define MESHWRIGHT_ATTENTION_INSTANCE(T)                                                        \
  template MESHWRIGHT_API void attention_forward<T>(                                            \
      const AttentionShape&, std::span<const QueryRun<T>>, std::span<const KeyRun<T>>);         \
  template MESHWRIGHT_API void attention_backward<T>(                                           \
      const AttentionShape&, std::span<const QueryRun<T>>, std::span<const KeyRun<T>>);         \
  template MESHWRIGHT_API void attention_delta<T>(int64_t, int64_t, int64_t, HeadView<const T>, \
                                                  HeadView<const T>,                            \
                                                  RowView<AttentionCompute<T>>);
MESHWRIGHT_ATTENTION_INSTANCE(float)
MESHWRIGHT_ATTENTION_INSTANCE(double)
MESHWRIGHT_ATTENTION_INSTANCE(c10::BFloat16)
#undef MESHWRIGHT_ATTENTION_INSTANCE

}  // namespace meshwright
