#include "row_route.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "meshwright/error.h"
#include "parts.h"

namespace meshwright::detail {

using at::Tensor;

namespace {

// Larger messages go through sockets: room in shared memory is six of them a rank.
constexpr int64_t kMostBytes = int64_t{64} << 20;

}  // namespace

// Bytes of a message's block for one rank: the weights, then the rows.
struct RowRoute::Sizes {
  int64_t width = 0;
  at::ScalarType type = at::kFloat;
  std::optional<at::ScalarType> weights;
  int64_t weight_bytes(int64_t n) const { return weights ? n * static_cast<int64_t>(c10::elementSize(*weights)) : 0; }
  // Rounded up, so that the next block's weights lie as they must.
  int64_t bytes(int64_t n) const {
    int64_t rows = n * width * static_cast<int64_t>(c10::elementSize(type));
    int64_t unit = weights ? static_cast<int64_t>(c10::elementSize(*weights)) : 1;
    return weight_bytes(n) + (rows + unit - 1) / unit * unit;
  }
  Tensor weights_of(const Tensor& block, int64_t n) const {
    return weights ? block.narrow(0, 0, weight_bytes(n)).view(*weights) : Tensor();
  }
  Tensor rows_of(const Tensor& block, int64_t n) const {
    int64_t size = n * width * static_cast<int64_t>(c10::elementSize(type));
    return block.narrow(0, weight_bytes(n), size).view(type).view({n, width});
  }
};

RowRoute::RowRoute(std::span<const int64_t> counts, std::shared_ptr<Group> group)
    : group_(std::move(group)),
      ranks_(group_->size()),
      me_(group_->rank()),
      experts_(static_cast<int64_t>(counts.size())),
      local_(experts_ / ranks_) {
  if (experts_ % ranks_ != 0)
    throw Error(ErrorCode::model_does_not_fit,
                std::to_string(experts_) + " experts do not divide by the " + std::to_string(ranks_) + " ranks of " + group_->axis())
        .key("distributed.ep_size");
  Tensor mine = at::empty({1, experts_}, at::kLong);
  std::copy(counts.begin(), counts.end(), mine.mutable_data_ptr<int64_t>());
  Tensor all = ranks_ == 1 ? mine : PartsGather(mine, 0, *group_).whole();
  counts_.assign(all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + all.numel());
  for (int64_t e = 0; e < local_; ++e) {
    int64_t begin = received_;
    for (int64_t r = 0; r < ranks_; ++r) {
      places_.push_back(received_);
      received_ += count(r, me_ * local_ + e);
    }
    local_counts_.push_back(received_ - begin);
  }
  sent_ = std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

int64_t RowRoute::between(int64_t source, int64_t destination) const {
  int64_t sum = 0;
  for (int64_t e = 0; e < local_; ++e) sum += count(source, destination * local_ + e);
  return sum;
}

RowRoute::Flight RowRoute::send(const Sizes& sizes, bool back, const std::function<void(int64_t, const Tensor&, const Tensor&)>& pack,
                                at::Device device) const {
  auto rows = [&](int64_t from, int64_t to) { return back ? between(to, from) : between(from, to); };
  // The largest message of any rank decides how all of them travel.
  int64_t largest = 0, total = 0, moved = 0;
  std::vector<int64_t> splits(static_cast<size_t>(ranks_)), coming(static_cast<size_t>(ranks_));
  for (int64_t r = 0; r < ranks_; ++r) {
    int64_t message = 0;
    for (int64_t to = 0; to < ranks_; ++to) message += sizes.bytes(rows(r, to));
    largest = std::max(largest, message);
    splits[static_cast<size_t>(r)] = sizes.bytes(rows(me_, r));
    coming[static_cast<size_t>(r)] = sizes.bytes(rows(r, me_));
    total += splits[static_cast<size_t>(r)];
    if (r != me_) moved += splits[static_cast<size_t>(r)];
  }
  Flight flight;
  if (largest == 0) {
    flight.arrived = at::empty({0}, at::TensorOptions().dtype(at::kByte).device(device));
    return flight;
  }
  if (device.is_cpu() && ranks_ > 1 && largest <= kMostBytes) {
    make_room(*group_, std::max<int64_t>(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(largest))), 4096));
    flight.mapped = group_->maps_gather(largest);
  }
  flight.packed = flight.mapped ? group_->stage_rows(total) : at::empty({total}, at::TensorOptions().dtype(at::kByte).device(device));
  int64_t at = 0;
  for (int64_t r = 0; r < ranks_; ++r) {
    int64_t n = rows(me_, r);
    Tensor block = flight.packed.narrow(0, at, splits[static_cast<size_t>(r)]);
    if (n > 0) pack(r, sizes.weights_of(block, n), sizes.rows_of(block, n));
    at += splits[static_cast<size_t>(r)];
  }
  if (flight.mapped) {
    flight.under_way = group_->exchange_staged(moved);
  } else if (ranks_ == 1) {
    flight.arrived = flight.packed;
  } else {
    flight.arrived = at::empty({std::accumulate(coming.begin(), coming.end(), int64_t{0})}, flight.packed.options());
    flight.under_way = group_->all_to_all(flight.packed, splits, flight.arrived, coming);
  }
  return flight;
}

void RowRoute::receive(Flight& flight, const Sizes& sizes, bool back,
                       const std::function<void(int64_t, const Tensor&, const Tensor&)>& unpack) const {
  auto rows = [&](int64_t from, int64_t to) { return back ? between(to, from) : between(from, to); };
  flight.under_way.wait();
  int64_t at = 0;
  for (int64_t r = 0; r < ranks_; ++r) {
    int64_t n = rows(r, me_), size = sizes.bytes(n);
    Tensor block;
    if (flight.mapped) {
      int64_t begin = 0;  // our part of what rank r staged
      for (int64_t to = 0; to < me_; ++to) begin += sizes.bytes(rows(r, to));
      if (n > 0) block = (r == me_ ? flight.packed : flight.under_way.peer(r)).narrow(0, begin, size);
    } else {
      block = flight.arrived.narrow(0, at, size);
      at += size;
    }
    if (n > 0) unpack(r, sizes.weights_of(block, n), sizes.rows_of(block, n));
  }
  flight.under_way.release();
  flight.packed = flight.arrived = Tensor();
}

RowRoute::Flight RowRoute::start(const Tensor& rows, const Tensor& order, const Tensor& weights) const {
  c10::NoGradGuard no_grad;
  Sizes sizes{rows.size(1), rows.scalar_type(), weights.defined() ? std::optional(weights.scalar_type()) : std::nullopt};
  int64_t at = 0;
  return send(
      sizes, false,
      [&](int64_t peer, const Tensor& to_weights, const Tensor& to_rows) {
        int64_t n = between(me_, peer);
        Tensor out = to_rows;
        at::index_select_out(out, rows, 0, order.narrow(0, at, n));
        if (to_weights.defined()) to_weights.copy_(weights.narrow(0, at, n));
        at += n;
      },
      rows.device());
}

Rows RowRoute::finish(Flight flight, int64_t width, const at::TensorOptions& like, std::optional<at::ScalarType> weights_type) const {
  c10::NoGradGuard no_grad;
  Sizes sizes{width, c10::typeMetaToScalarType(like.dtype()), weights_type};
  Rows out{at::empty({received_, width}, like), {}};
  if (weights_type) out.weights = at::empty({received_}, like.dtype(weights_type));
  receive(flight, sizes, false, [&](int64_t peer, const Tensor& weights, const Tensor& rows) {
    int64_t at = 0;
    for (int64_t e = 0; e < local_; ++e) {
      int64_t n = count(peer, me_ * local_ + e), place = places_[static_cast<size_t>(e * ranks_ + peer)];
      out.rows.narrow(0, place, n).copy_(rows.narrow(0, at, n));
      if (weights.defined()) out.weights.narrow(0, place, n).copy_(weights.narrow(0, at, n));
      at += n;
    }
  });
  return out;
}

RowRoute::Flight RowRoute::start_back(const Rows& rows) const {
  c10::NoGradGuard no_grad;
  Sizes sizes{rows.rows.size(1), rows.rows.scalar_type(),
              rows.weights.defined() ? std::optional(rows.weights.scalar_type()) : std::nullopt};
  return send(
      sizes, true,
      [&](int64_t peer, const Tensor& to_weights, const Tensor& to_rows) {
        int64_t at = 0;
        for (int64_t e = 0; e < local_; ++e) {
          int64_t n = count(peer, me_ * local_ + e), place = places_[static_cast<size_t>(e * ranks_ + peer)];
          to_rows.narrow(0, at, n).copy_(rows.rows.narrow(0, place, n));
          if (to_weights.defined()) to_weights.narrow(0, at, n).copy_(rows.weights.narrow(0, place, n));
          at += n;
        }
      },
      rows.rows.device());
}

Rows RowRoute::finish_back(Flight flight, int64_t width, const at::TensorOptions& like, std::optional<at::ScalarType> weights_type) const {
  c10::NoGradGuard no_grad;
  Sizes sizes{width, c10::typeMetaToScalarType(like.dtype()), weights_type};
  Rows out{at::empty({sent_, width}, like), {}};
  if (weights_type) out.weights = at::empty({sent_}, like.dtype(weights_type));
  int64_t at = 0;
  receive(flight, sizes, true, [&](int64_t, const Tensor& weights, const Tensor& rows) {
    out.rows.narrow(0, at, rows.size(0)).copy_(rows);
    if (weights.defined()) out.weights.narrow(0, at, rows.size(0)).copy_(weights);
    at += rows.size(0);
  });
  return out;
}

}  // namespace meshwright::detail
