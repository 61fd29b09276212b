// Rows of tokens: taken by index, and added up.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "meshwright/nn/moe.h"

namespace meshwright::detail {

// Contiguous float32 on the CPU, whose rows may be reached by pointers.
bool plain_rows(const at::Tensor& t);
// [n, width] without values, in memory for up to an eighth more rows: numbers that change from call
// to call take the same blocks again.
at::Tensor empty_rows(int64_t n, int64_t width, const at::TensorOptions& options);
// out[at + i] = x[rows[begin + i]] for i in [0, n), zeros where that is -1; without autograd. Rows
// of one width, or numbers; contiguous.
void take_rows_into(const at::Tensor& out, int64_t at, const at::Tensor& x, const at::Tensor& rows,
                    int64_t begin, int64_t n);
// combine_tokens() to float32, whatever the type of y (float64 stays).
at::Tensor combine_wide(const at::Tensor& y, const ExpertOrder& order);
// The sum of each token's rows, those at -1 left out: place [T, k], rows[place] float32 of `width`
// each; [T, width].
at::Tensor sum_plain_rows(std::span<const float* const> rows, const at::Tensor& place,
                          int64_t width);
inline int64_t rounded_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
// What n rows of an expert take.
inline int64_t taken_rows(int64_t n, bool padded) { return padded ? padded_rows(n) : n; }
// ExpertOrder::counts of its bounds. Waits for the device.
MESHWRIGHT_API std::vector<int64_t> counts_of(const at::Tensor& bounds);
// The order of sort_without_counts() with counts that are known, and without the rows of nobody.
MESHWRIGHT_API ExpertOrder with_counts(ExpertOrder order, std::vector<int64_t> counts);

}  // namespace meshwright::detail
