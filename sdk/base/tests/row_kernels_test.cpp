// Kernels for the rows of experts: products by group, and rows taken and added up by index.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "kernel_numbers.h"

namespace kernels_test {

// Groups of rows: one of several tiles, an empty one, one of a single row; and rows of nobody.
struct Grouped {
  static constexpr int kGroups = 4;
  static constexpr long long kRows = 150;
  std::vector<int> bounds{0, 70, 70, 71, 139};
  long long inner, width;
  bool packs;
  Numbers<float> a, weights, grad;
  Grouped(long long inner_size, long long width_size, bool in_packs)
      : inner(inner_size),
        width(width_size),
        packs(in_packs),
        a(Numbers<float>::random(kRows * inner_size, 1)),
        weights(Numbers<float>::random(kGroups * inner_size * width_size, 2)),
        grad(Numbers<float>::random(kRows * width_size, 3)) {}
  void launch(const GroupedProduct& product, long long blocks) const {
    run<float>("grouped_product", packs, blocks, product, GroupedProduct::kFloats * sizeof(float));
  }

  // Weights as they lie, or as if they lay [groups, width, inner].
  void check_rows(bool transposed, long long blocks) {
    CAPTURE(transposed);
    std::vector<float> out(static_cast<size_t>(kRows * width), -7);
    launch({.a = a.data(),
            .b = weights.data(),
            .out = out.data(),
            .bounds = bounds.data(),
            .rows = kRows,
            .width = width,
            .inner = inner,
            .b_inner = transposed ? 1 : width,
            .b_column = transposed ? inner : 1,
            .groups = kGroups,
            .scale = 0.5F},
           blocks);
    for (long long row = 0, group = 0; row < kRows; ++row) {
      while (group < kGroups && row >= bounds[static_cast<size_t>(group) + 1]) ++group;
      for (long long c = 0; c < width; ++c) {
        const float got = out[static_cast<size_t>(row * width + c)];
        if (group == kGroups) {
          CHECK(got == -7);
          continue;
        }
        double want = 0, size = 0;
        for (long long p = 0; p < inner; ++p) {
          const double one =
              a[row * inner + p] *
              weights[group * inner * width + (transposed ? c * inner + p : p * width + c)];
          want += 0.5 * one, size += std::abs(one);
        }
        check_close<float>(static_cast<double>(got), want, size);
      }
    }
  }
  // What a weight's gradient is: a^T grad of each group, zeros for an empty one.
  void check_sums(bool add, long long blocks) {
    CAPTURE(add);
    std::vector<float> out(static_cast<size_t>(kGroups * inner * width), add ? 3 : NAN);
    launch({.a = a.data(),
            .b = grad.data(),
            .out = out.data(),
            .bounds = bounds.data(),
            .rows = kRows,
            .height = inner,
            .width = width,
            .b_inner = width,
            .b_column = 1,
            .groups = kGroups,
            .sums_rows = 1,
            .scale = 2,
            .add = add ? 1 : 0},
           blocks);
    for (long long group = 0; group < kGroups; ++group)
      for (long long i = 0; i < inner; ++i)
        for (long long c = 0; c < width; ++c) {
          double want = add ? 3 : 0, size = 1;
          for (long long row = bounds[static_cast<size_t>(group)];
               row < bounds[static_cast<size_t>(group) + 1]; ++row) {
            const double one = a[row * inner + i] * grad[row * width + c];
            want += 2 * one, size += 2 * std::abs(one);
          }
          check_close<float>(
              static_cast<double>(out[static_cast<size_t>((group * inner + i) * width + c)]), want,
              size);
        }
  }
};

// Rows that are named, some twice, one by nobody; and some that are none.
template <class T>
void check_rows(long long size, bool packs, bool wide) {
  CAPTURE(Type<T>::name);
  CAPTURE(size);
  CAPTURE(wide);
  constexpr long long kOf = 5, kMost = 3;
  auto narrow = Numbers<T>::random(kOf * size, 1);
  auto floats = Numbers<float>::random(kOf * size, 2);
  const std::vector<long long> rows{3, -1, 0, 0, 4, 1, -1, 3, -1, -1, -1, -1};
  const auto count = static_cast<long long>(rows.size());
  Numbers<T> taken(count * size);
  run<T>("take_rows", packs, 2,
         TakeRows{.in = wide ? static_cast<const void*>(floats.data()) : narrow.data(),
                  .rows = rows.data(),
                  .out = taken.data(),
                  .of = kOf,
                  .count = count,
                  .size = size,
                  .wide = wide ? 1 : 0});
  for (long long i = 0; i < count * size; ++i) {
    const long long from = rows[static_cast<size_t>(i / size)];
    T want{};
    if (from >= 0)
      put(want, wide ? floats.all[static_cast<size_t>(from * size + i % size)]
                     : ::meshwright::kernels::wide(
                           narrow.all[static_cast<size_t>(from * size + i % size)]));
    CHECK(taken[i] == static_cast<double>(::meshwright::kernels::wide(want)));
  }
  Numbers<T> sums(count / kMost * size);
  Numbers<float> wide_sums(count / kMost * size);
  run<T>("combine_rows", packs, 2,
         CombineRows{.in = narrow.data(),
                     .place = rows.data(),
                     .out = wide ? static_cast<void*>(wide_sums.data()) : sums.data(),
                     .of = kOf,
                     .count = count / kMost,
                     .size = size,
                     .most = kMost,
                     .wide = wide ? 1 : 0});
  for (long long i = 0; i < count / kMost * size; ++i) {
    float want = 0;
    for (long long j = 0; j < kMost; ++j) {
      const long long from = rows[static_cast<size_t>(i / size * kMost + j)];
      if (from >= 0)
        want +=
            ::meshwright::kernels::wide(narrow.all[static_cast<size_t>(from * size + i % size)]);
    }
    CHECK((wide ? wide_sums[i] : sums[i]) == static_cast<double>(wide ? want : rounded<T>(want)));
  }
}

// Rows that lie apart, with rows of another tensor among them, to rows that lie apart; what lies
// between is left alone.
template <class T>
void check_rows_among(long long size, long long apart, bool packs) {
  CAPTURE(Type<T>::name);
  CAPTURE(size);
  constexpr long long kOf = 4, kOthers = 3;
  const long long stride = size + apart;
  auto in = Numbers<T>::random(kOf * stride, 1), others = Numbers<T>::random(kOthers * size, 2);
  const std::vector<long long> named{2, 0, 2}, rows{0, 6, -1, 1, 4, 2, 3, 5};
  const auto count = static_cast<long long>(rows.size());
  const Inserted among{others.data(), named.data(), kOthers, 1, 3};
  auto want = [&](long long row, long long column) {
    if (row < 0) return 0.0F;
    if (row >= 1 && row < 4)
      return ::meshwright::kernels::wide(
          others.all[static_cast<size_t>(named[static_cast<size_t>(row - 1)] * size + column)]);
    return ::meshwright::kernels::wide(
        in.all[static_cast<size_t>((row == 0 ? 0 : row - 3) * stride + column)]);
  };
  auto taken = Numbers<T>::random(count * stride, 3);
  const auto before = taken;
  run<T>("take_rows", packs, 2,
         TakeRows{.in = in.data(),
                  .rows = rows.data(),
                  .out = taken.data(),
                  .of = kOf,
                  .count = count,
                  .size = size,
                  .in_stride = stride,
                  .out_stride = stride,
                  .among = among});
  for (long long i = 0; i < count * stride; ++i)
    CHECK(taken[i] == (i % stride < size ? static_cast<double>(want(
                                               rows[static_cast<size_t>(i / stride)], i % stride))
                                         : before[i]));
  constexpr long long kMost = 2;
  Numbers<float> sums(count / kMost * size);
  run<T>("combine_rows", packs, 2,
         CombineRows{.in = in.data(),
                     .place = rows.data(),
                     .out = sums.data(),
                     .of = kOf,
                     .count = count / kMost,
                     .size = size,
                     .most = kMost,
                     .wide = 1,
                     .in_stride = stride,
                     .among = among});
  for (long long i = 0; i < count / kMost * size; ++i) {
    float sum = 0;
    for (long long j = 0; j < kMost; ++j)
      sum += want(rows[static_cast<size_t>(i / size * kMost + j)], i % size);
    CHECK(sums[i] == static_cast<double>(sum));
  }
}

}  // namespace kernels_test

using namespace kernels_test;

TEST_CASE("a grouped product is one of each group, in any number of blocks") {
  for (const auto& [inner, width, packs] :
       {std::tuple{16LL, 64LL, true}, {20LL, 132LL, true}, {37LL, 5LL, false}, {70LL, 65LL, false}})
    for (const long long blocks : {1, 3, 100}) {
      CAPTURE(inner);
      CAPTURE(width);
      CAPTURE(blocks);
      Grouped grouped(inner, width, packs);
      for (const bool transposed : {false, true}) grouped.check_rows(transposed, blocks);
      for (const bool add : {false, true}) grouped.check_sums(add, blocks);
    }
}

TEST_CASE("rows are taken and added up by index, and those of nobody are zeros") {
  for (const bool wide : {false, true})
    for (const auto& [size, packs] : {std::pair{16LL, true}, {40LL, true}, {7LL, false}}) {
      check_rows<float>(size, packs, false);
      check_rows<BFloat16>(size, packs, wide);
      check_rows<Half>(size, packs, wide);
    }
}

TEST_CASE("rows of two tensors are taken and added up in one order, wherever each lies") {
  check_rows_among<float>(16, 4, true);
  check_rows_among<BFloat16>(40, 8, true);
  check_rows_among<Half>(16, 8, true);
  check_rows_among<float>(7, 1, false);
  check_rows_among<BFloat16>(7, 3, false);
}
