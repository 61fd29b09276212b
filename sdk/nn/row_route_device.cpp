// The way of rows on a device: every reorder is a launch or two, whatever the number of experts.
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <numeric>
#include <utility>

#include "row_route.h"

namespace meshwright::detail {

using at::Tensor;

int64_t RowRoute::Sizes::pitch() const {
  constexpr int64_t kPack = 16;  // bytes that kernels read at once
  const int64_t row = row_bytes(1);
  return weights ? rounded_up(row + weight_bytes(1), row % kPack == 0 ? kPack : unit()) : row;
}
Tensor RowRoute::Sizes::rows_in(const Tensor& messages) const {
  return messages.view(c10::typeMetaToScalarType(rows.dtype())).narrow(1, 0, width);
}
Tensor RowRoute::Sizes::weights_in(const Tensor& messages) const {
  const Tensor all = messages.view(*weights);
  return all.select(1, all.size(1) - 1);
}

void RowRoute::find_places() {
  std::vector<int64_t> counts, begins;
  for (int64_t r = 0; r < ranks_; ++r)
    for (int64_t e = 0; e < local_; ++e) {
      counts.push_back(count(r, me_ * local_ + e));
      begins.push_back(places_[static_cast<size_t>(e * ranks_ + r)]);
    }
  on_device_ = places_of_runs(counts, begins, received_, order_.slot.device());
  for (int64_t r = 0; r < me_; ++r) from_lower_ += between(r, me_);
}

RowRoute::Flight RowRoute::send_from_device(const Rows& own, bool back) const {
  Flight flight;
  flight.sizes = sizes_of(own);
  flight.back = back;
  flight.own = own;
  const Sizes& sizes = flight.sizes;
  std::vector<int64_t> splits, coming;
  for (int64_t r = 0; r < ranks_; ++r) {
    const int64_t out = r == me_ ? 0 : between(me_, r), in = r == me_ ? 0 : between(r, me_);
    splits.push_back(back ? in : out);
    coming.push_back(back ? out : in);
  }
  auto messages = [&](const std::vector<int64_t>& rows) {
    return at::empty({std::accumulate(rows.begin(), rows.end(), int64_t{0}), sizes.pitch()},
                     at::TensorOptions().dtype(at::kByte).device(own.rows.device()));
  };
  flight.packed = messages(splits);
  flight.arrived = messages(coming);
  if (!anything_moves_) return flight;
  // By ranks, as they travel; what stays lies between those before this rank and those behind.
  const Tensor to_rows = sizes.rows_in(flight.packed);
  const Tensor to_weights = sizes.weights ? sizes.weights_in(flight.packed) : Tensor();
  const Tensor &rows = back ? on_device_.place : order_.token,
               &weights = back ? on_device_.place : order_.slot;
  auto pack = [&](int64_t first, int64_t begin, int64_t n) {
    if (n == 0) return;
    take_rows_into(to_rows, first, own.rows, rows, begin, n);
    if (!to_weights.defined()) return;
    Tensor to = to_weights.narrow(0, first, n);
    at::index_select_out(to, own.weights.view({-1}), 0, weights.narrow(0, begin, n));
  };
  const int64_t lower = back ? from_lower_ : begins_[static_cast<size_t>(me_)];
  pack(0, 0, lower);
  pack(lower, lower + between(me_, me_), flight.packed.size(0) - lower);
  flight.under_way = group_->all_to_all(flight.packed, splits, flight.arrived, coming);
  return flight;
}

Rows RowRoute::finish_on_device(Flight flight) const {
  receive(flight, {});
  const Sizes& sizes = flight.sizes;
  const int64_t begin = begins_[static_cast<size_t>(me_)], stays = between(me_, me_);
  Rows out{empty_rows(received_, sizes.width, sizes.rows), {}};
  // Own rows straight from where they lie.
  take_among_into(out.rows,
                  {sizes.rows_in(flight.arrived), flight.own.rows,
                   order_.token.narrow(0, begin, stays), from_lower_},
                  on_device_.row);
  if (!sizes.weights) return out;
  const Tensor weights =
      rows_together({sizes.weights_in(flight.arrived), flight.own.weights.view({-1}),
                     order_.slot.narrow(0, begin, stays), from_lower_});
  if (padded_) {
    out.weights = at::empty({received_}, weights.options());
    take_rows_into(out.weights, 0, weights, on_device_.row, 0, received_);
  } else {
    out.weights = weights.index_select(0, on_device_.row);
  }
  return out;
}

Rows RowRoute::finish_back_on_device(Flight flight) const {
  receive(flight, {});
  const Sizes& sizes = flight.sizes;
  const int64_t begin = begins_[static_cast<size_t>(me_)];
  const Tensor stayed = on_device_.place.narrow(0, from_lower_, between(me_, me_));
  Rows out;
  if (sizes.weights) {
    out.weights = at::zeros(order_.place.sizes(), sizes.rows.dtype(sizes.weights));
    out.weights.view({-1}).index_copy_(
        0, order_.slot.narrow(0, 0, begins_.back()),
        rows_together({sizes.weights_in(flight.arrived), flight.own.weights, stayed, begin}));
  }
  out.rows =
      sum_among({sizes.rows_in(flight.arrived), flight.own.rows, stayed, begin}, order_.place);
  return out;
}

}  // namespace meshwright::detail
