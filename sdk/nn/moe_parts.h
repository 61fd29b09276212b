// Tokens on their way to experts: rows taken by index and added up, what experts compute between
// their two products (forward and backward, without autograd), and who brings tokens there.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "meshwright/nn/moe.h"
#include "meshwright/parallel/group.h"
#include "sdk/base/shared_schemas.h"

namespace meshwright::detail {

// In float32, or float64 where it is that: what sums are made in.
at::Tensor wide(const at::Tensor& t);
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
// Rows of two tensors in one order: those of `rows`, and before the one at `first` the rows `named`
// of `others`. Of one dtype; or numbers.
struct RowsAmong {
  at::Tensor rows;         // [n, width], on a device also with memory between rows
  at::Tensor others = {};  // [m, width], contiguous
  at::Tensor named = {};   // [k] int64
  int64_t first = 0;
};
// Copied together: [n + k, width].
at::Tensor rows_together(const RowsAmong& from);
// out[i] = row index[i] of them, zeros where that is -1; without autograd. On a device a launch.
MESHWRIGHT_API void take_among_into(const at::Tensor& out, const RowsAmong& from,
                                    const at::Tensor& index);
// combine_tokens() of them, without autograd. On a device a launch.
MESHWRIGHT_API at::Tensor sum_among(const RowsAmong& from, const at::Tensor& place);
// Runs of rows that come one after another and are put elsewhere.
struct RowPlaces {
  at::Tensor place;  // of each row that comes
  at::Tensor row;    // [all]: which of them lies at each place, -1: none
};
// counts[i] rows from begins[i] on, of `all` places. Nobody waits for the device, and the launches
// do not depend on the number of runs.
MESHWRIGHT_API RowPlaces places_of_runs(std::span<const int64_t> counts,
                                        std::span<const int64_t> begins, int64_t all,
                                        c10::Device device);
inline int64_t rounded_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
// What n rows of an expert take.
inline int64_t taken_rows(int64_t n, bool padded) { return padded ? padded_rows(n) : n; }
// ExpertOrder::counts of its bounds. Waits for the device.
MESHWRIGHT_API std::vector<int64_t> counts_of(const at::Tensor& bounds);
// The order of sort_without_counts() with counts that are known, and without the rows of nobody.
MESHWRIGHT_API ExpertOrder with_counts(ExpertOrder order, std::vector<int64_t> counts);

// What experts do between their two products, forward and backward, without autograd.

// An activation with its numbers.
struct ActivationShape {
  ExpertActivation kind = ExpertActivation::swiglu;
  double alpha = 1.702, limit = 7, swiglu_limit = 0;
  bool gated() const { return kind != ExpertActivation::relu2; }
};

ActivationShape activation_shape(const MoeConfig& config);

// Whether these two put their results where the caller says, for tensors like t.
bool activates_into(const ActivationShape& shape, const at::Tensor& t);

// h [N, 2f] (relu2: [N, f]) to [N, f], times weights [N] where they are defined; computed in
// float32 (float64 of float64). `into`: where it may be put.
at::Tensor activate(const ActivationShape& shape, const at::Tensor& h, const at::Tensor& weights,
                    const at::Tensor& into = {});

struct ActivationGradients {
  at::Tensor to_h, to_weights;  // as h; [N] in the dtype of weights
  at::Tensor weighted;          // activate(shape, h, weights)
};
// grad [N, f]: of the weighted activation. `into`: where they may be put, defined or not.
ActivationGradients activate_backward(const ActivationShape& shape, const at::Tensor& h,
                                      const at::Tensor& weights, const at::Tensor& grad,
                                      ActivationGradients into = {});

// How tokens reach experts on other ranks.

// The dispatcher over the ranks of `ep`; each rank holds an equal part of the experts, in order.
// Every rank of the group must call forward and backward through it equally often, with or without
// tokens.
std::shared_ptr<ExpertDispatcher> make_dispatcher(TokenDispatcher kind, std::shared_ptr<Group> ep);

}  // namespace meshwright::detail
