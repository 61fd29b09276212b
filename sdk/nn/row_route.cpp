#include "row_route.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "meshwright/error.h"
#include "moe_parts.h"
#include "sdk/base/read_by_host.h"
#include "sdk/comm/parts.h"
#include "sdk/comm/shared_memory.h"
#include "sdk/nn/buffers.h"

namespace meshwright::detail {

using at::Tensor;

namespace {

// Larger messages go through sockets: room in shared memory is six of them per rank.
constexpr int64_t kMostBytes = int64_t{64} << 20;

// to[at .. at + n) = from[begin .. begin + n), rows of one width or numbers.
void copy_rows(const Tensor& to, int64_t at, const Tensor& from, int64_t begin, int64_t n) {
  int64_t width = to.dim() > 1 ? to.size(1) : 1;
  copy(to.view({-1}), at * width, from.view({-1}), begin * width, n * width);
}

// to[place[begin + i]] = from[i], numbers.
void put_numbers(const Tensor& to, const Tensor& place, int64_t begin, const Tensor& from) {
  int64_t n = from.size(0);
  if (!plain_rows(from)) {
    to.index_copy_(0, place.narrow(0, begin, n), from);
    return;
  }
  float* out = to.mutable_data_ptr<float>();
  const float* in = from.const_data_ptr<float>();
  const int64_t* at = place.const_data_ptr<int64_t>() + begin;
  for (int64_t i = 0; i < n; ++i) out[at[i]] = in[i];
}

}  // namespace

int64_t RowRoute::Sizes::unit() const {
  auto each = static_cast<int64_t>(rows.dtype().itemsize());
  return weights ? std::max(each, weight_bytes(1)) : each;
}
int64_t RowRoute::Sizes::rows_at(int64_t n) const { return rounded_up(weight_bytes(n), unit()); }
int64_t RowRoute::Sizes::bytes(int64_t n) const {
  return rows_at(n) + rounded_up(row_bytes(n), unit());
}

// A message between two ranks.
struct RowRoute::Block {
  int64_t count;
  Tensor rows, weights;  // [count, width], [count]
  Block(const Sizes& sizes, const Tensor& bytes, int64_t n)
      : count(n),
        rows(bytes.narrow(0, sizes.rows_at(n), sizes.row_bytes(n))
                 .view(c10::typeMetaToScalarType(sizes.rows.dtype()))
                 .view({n, sizes.width})) {
    if (sizes.weights) weights = bytes.narrow(0, 0, sizes.weight_bytes(n)).view(*sizes.weights);
  }
};

namespace {

int64_t experts_of(const ExpertOrder& order) {
  return order.bounds.defined() ? order.bounds.numel() - 1
                                : static_cast<int64_t>(order.counts.size());
}

}  // namespace

RowRoute::RowRoute(ExpertOrder order, const Counts& counts, bool padded,
                   std::shared_ptr<Group> group)
    : order_(std::move(order)),
      group_(std::move(group)),
      ranks_(group_->size()),
      me_(group_->rank()),
      experts_(experts_of(order_)),
      local_(experts_ / ranks_),
      padded_(padded),
      local_bounds_(counts.local_bounds) {
  const int64_t* all = counts.all.const_data_ptr<int64_t>();
  counts_.assign(all, all + counts.all.numel());
  for (int64_t source = 0; source < ranks_; ++source)
    for (int64_t destination = 0; destination < ranks_; ++destination) {
      int64_t rows = 0;
      for (int64_t e = 0; e < local_; ++e) rows += count(source, destination * local_ + e);
      between_.push_back(rows);
      if (rows > 0 && source != destination) anything_moves_ = true;
    }
  for (int64_t e = 0; e < local_; ++e) {
    int64_t here = 0;
    for (int64_t r = 0; r < ranks_; ++r) {
      places_.push_back(received_ + here);
      here += count(r, me_ * local_ + e);
    }
    local_counts_.push_back(here);
    received_ += taken_rows(here, padded_);
  }
  begins_.push_back(0);
  for (int64_t r = 0; r < ranks_; ++r) begins_.push_back(begins_.back() + between(me_, r));
  if (!order_.slot.is_cpu()) find_places();
}

RowRoute::Counts RowRoute::gather_counts(const ExpertOrder& order, Group& group) {
  const int64_t experts = experts_of(order), ranks = group.size(), local = experts / ranks;
  if (experts % ranks != 0)
    throw Error(ErrorCode::model_does_not_fit,
                std::to_string(experts) + " experts do not divide by the " + std::to_string(ranks) +
                    " ranks of " + group.axis())
        .key("distributed.ep_size");
  const Tensor& bounds = order.bounds;
  Tensor mine;
  if (bounds.defined()) {
    mine = at::sub(bounds.narrow(0, 1, experts), bounds.narrow(0, 0, experts)).to(at::kLong);
  } else {
    mine = at::empty({experts}, at::kLong);
    std::copy(order.counts.begin(), order.counts.end(), mine.mutable_data_ptr<int64_t>());
    mine = mine.to(order.slot.device());
  }
  mine = mine.unsqueeze(0);
  const Tensor all = ranks == 1 ? mine : PartsGather(mine, 0, group).whole();
  Counts out;
  if (bounds.defined()) {
    out.local_bounds = at::zeros({local + 1}, bounds.options());
    out.local_bounds.narrow(0, 1, local)
        .copy_(all.narrow(1, group.rank() * local, local).sum(0).cumsum(0));
  }
  out.all = read_by_host(group, all);
  return out;
}

RowRoute::Sizes RowRoute::sizes_of(const Rows& own) {
  return {own.rows.size(1), own.rows.options().requires_grad(false),
          own.weights.defined() ? std::optional(own.weights.scalar_type()) : std::nullopt};
}

template <class F>
void RowRoute::each_segment(int64_t source, F f) const {
  int64_t at = 0;
  for (int64_t e = 0; e < local_; ++e) {
    int64_t n = count(source, me_ * local_ + e);
    if (n > 0) f(at, places_[static_cast<size_t>(e * ranks_ + source)], n);
    at += n;
  }
}

RowRoute::Flight RowRoute::send(const Rows& own, bool back,
                                const std::function<void(int64_t, const Block&)>& pack) const {
  Flight flight;
  flight.sizes = sizes_of(own);
  flight.back = back;
  flight.own = own;
  const Sizes& sizes = flight.sizes;
  auto bytes = [&](int64_t from, int64_t to) {
    return from == to ? 0 : sizes.bytes(back ? between(to, from) : between(from, to));
  };
  // The largest message of any rank decides how all of them travel.
  int64_t largest = 0, total = 0;
  std::vector<int64_t> splits, coming;
  for (int64_t r = 0; r < ranks_; ++r) {
    int64_t message = 0;
    for (int64_t to = 0; to < ranks_; ++to) message += bytes(r, to);
    largest = std::max(largest, message);
    splits.push_back(bytes(me_, r));
    coming.push_back(bytes(r, me_));
    total += splits.back();
  }
  if (largest == 0) return flight;
  at::Device device = own.rows.device();
  if (device.is_cpu() && largest <= kMostBytes) {
    make_room(*group_,
              std::max<int64_t>(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(largest))),
                                4096));
    flight.mapped = maps_gather(*group_, largest);
  }
  flight.packed = flight.mapped
                      ? stage_rows(*group_, total)
                      : at::empty({total}, at::TensorOptions().dtype(at::kByte).device(device));
  int64_t at = 0, moved = 0;
  for (int64_t r = 0; r < ranks_; ++r) {
    int64_t n = r == me_ ? 0 : back ? between(r, me_) : between(me_, r);
    if (n > 0)
      pack(r, Block(sizes, flight.packed.narrow(0, at, splits[static_cast<size_t>(r)]), n));
    at += splits[static_cast<size_t>(r)];
    moved += sizes.row_bytes(n) + sizes.weight_bytes(n);
  }
  if (flight.mapped) {
    flight.under_way = exchange_staged(*group_, moved);
  } else {
    flight.arrived = at::empty({std::accumulate(coming.begin(), coming.end(), int64_t{0})},
                               flight.packed.options());
    flight.under_way = group_->all_to_all(flight.packed, splits, flight.arrived, coming);
  }
  return flight;
}

// Calls unpack for every other rank from which something came. What came may be read until the
// flight's end.
void RowRoute::receive(Flight& flight,
                       const std::function<void(int64_t, const Block&)>& unpack) const {
  const Sizes& sizes = flight.sizes;
  auto rows = [&](int64_t from, int64_t to) {
    return from == to ? 0 : flight.back ? between(to, from) : between(from, to);
  };
  flight.under_way.wait();
  if (!unpack) return;
  int64_t at = 0;
  for (int64_t r = 0; r < ranks_; ++r) {
    int64_t n = rows(r, me_), size = sizes.bytes(n);
    if (n == 0) continue;
    if (flight.mapped) {
      int64_t begin = 0;  // our part of what rank r staged
      for (int64_t to = 0; to < me_; ++to) begin += sizes.bytes(rows(r, to));
      unpack(r, Block(sizes, detail::peer(flight.under_way, r).narrow(0, begin, size), n));
    } else {
      unpack(r, Block(sizes, flight.arrived.narrow(0, at, size), n));
    }
    at += size;
  }
}

RowRoute::Flight RowRoute::start(const Tensor& x, const Tensor& weights) const {
  c10::NoGradGuard no_grad;
  if (!x.is_cpu()) return send_from_device({x, weights}, /*back=*/false);
  return send({x, weights}, /*back=*/false, [&](int64_t peer, const Block& block) {
    int64_t begin = begins_[static_cast<size_t>(peer)];
    take_rows_into(block.rows, 0, x, order_.token, begin, block.count);
    if (block.weights.defined())
      take_rows_into(block.weights, 0, weights.view({-1}), order_.slot, begin, block.count);
  });
}

Rows RowRoute::finish(Flight flight) const {
  c10::NoGradGuard no_grad;
  if (!flight.own.rows.is_cpu()) return finish_on_device(std::move(flight));
  Rows out{empty_rows(received_, flight.sizes.width, flight.sizes.rows), {}};
  if (flight.sizes.weights)
    out.weights = at::zeros({received_}, flight.sizes.rows.dtype(flight.sizes.weights));
  for (int64_t e = 0, begin = 0; e < local_; ++e) {
    int64_t n = local_counts_[static_cast<size_t>(e)], taken = taken_rows(n, padded_);
    clear(out.rows.view({-1}), (begin + n) * flight.sizes.width, (taken - n) * flight.sizes.width);
    begin += taken;
  }
  // Own rows straight from where they lie.
  each_segment(me_, [&](int64_t at, int64_t place, int64_t n) {
    int64_t begin = begins_[static_cast<size_t>(me_)] + at;
    take_rows_into(out.rows, place, flight.own.rows, order_.token, begin, n);
    if (out.weights.defined())
      take_rows_into(out.weights, place, flight.own.weights.view({-1}), order_.slot, begin, n);
  });
  receive(flight, [&](int64_t peer, const Block& block) {
    each_segment(peer, [&](int64_t at, int64_t place, int64_t n) {
      copy_rows(out.rows, place, block.rows, at, n);
      if (block.weights.defined()) copy_rows(out.weights, place, block.weights, at, n);
    });
  });
  return out;
}

RowRoute::Flight RowRoute::start_back(const Rows& rows) const {
  c10::NoGradGuard no_grad;
  if (!rows.rows.is_cpu()) return send_from_device(rows, /*back=*/true);
  return send(rows, /*back=*/true, [&](int64_t peer, const Block& block) {
    each_segment(peer, [&](int64_t at, int64_t place, int64_t n) {
      copy_rows(block.rows, at, rows.rows, place, n);
      if (block.weights.defined()) copy_rows(block.weights, at, rows.weights, place, n);
    });
  });
}

// `from`: the rows that each other rank sent back.
Tensor RowRoute::sums(const Flight& flight, const std::vector<Tensor>& from) const {
  int64_t sent = begins_.back(), width = flight.sizes.width;
  const Tensor& own = flight.own.rows;
  bool plain = plain_rows(own) && std::all_of(from.begin(), from.end(), [](const Tensor& t) {
                 return !t.defined() || plain_rows(t);
               });
  // Read where they lie, or put together in the order they left.
  std::vector<const float*> at(plain ? static_cast<size_t>(sent) : 0);
  Tensor whole = plain ? Tensor() : at::empty({sent, width}, flight.sizes.rows);
  auto put = [&](int64_t to, const Tensor& rows, int64_t begin, int64_t n) {
    if (!plain) return copy_rows(whole, to, rows, begin, n);
    for (int64_t i = 0; i < n; ++i)
      at[static_cast<size_t>(to + i)] = rows.const_data_ptr<float>() + (begin + i) * width;
  };
  for (int64_t r = 0; r < ranks_; ++r) {
    int64_t begin = begins_[static_cast<size_t>(r)];
    if (r == me_)
      each_segment(me_,
                   [&](int64_t i, int64_t place, int64_t n) { put(begin + i, own, place, n); });
    else if (from[static_cast<size_t>(r)].defined())
      put(begin, from[static_cast<size_t>(r)], 0, from[static_cast<size_t>(r)].size(0));
  }
  return plain ? sum_plain_rows(at, order_.place, width) : combine_tokens(whole, order_);
}

Rows RowRoute::finish_back(Flight flight) const {
  c10::NoGradGuard no_grad;
  if (!flight.own.rows.is_cpu()) return finish_back_on_device(std::move(flight));
  Rows out;
  if (flight.sizes.weights) {
    out.weights = at::zeros(order_.place.sizes(), flight.sizes.rows.dtype(flight.sizes.weights));
    each_segment(me_, [&](int64_t at, int64_t place, int64_t n) {
      put_numbers(out.weights.view({-1}), order_.slot, begins_[static_cast<size_t>(me_)] + at,
                  flight.own.weights.narrow(0, place, n));
    });
  }
  std::vector<Tensor> from(static_cast<size_t>(ranks_));
  receive(flight, [&](int64_t peer, const Block& block) {
    from[static_cast<size_t>(peer)] = block.rows;
    if (block.weights.defined())
      put_numbers(out.weights.view({-1}), order_.slot, begins_[static_cast<size_t>(peer)],
                  block.weights);
  });
  out.rows = sums(flight, from);
  return out;
}

// The way of rows on a device: every reorder is a launch or two, whatever the number of experts.

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
