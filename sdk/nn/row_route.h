// The way of token rows to the ranks that hold their experts, and back: an all-to-all whose sizes
// all ranks know.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "meshwright/nn/moe.h"
#include "meshwright/parallel/group.h"
#include "moe_parts.h"

namespace meshwright::detail {

// Rows and, where there are any, one number beside each (routing weights).
struct Rows {
  at::Tensor rows;     // [n, width]
  at::Tensor weights;  // [n], undefined: none
};

class RowRoute {
 public:
  // What ranks tell each other before rows can go.
  struct Counts {
    at::Tensor all;  // [ranks, experts] int64, on the host: rows of each rank for each expert
    at::Tensor local_bounds;  // ExpertOrder::bounds of this rank's experts, where `order` had them
  };
  // Collective. `order`: this rank's rows, by the experts of all ranks, without rows of zeros, or
  // without counts: the host then waits once. Each rank holds an equal part of the experts, in
  // order.
  static Counts gather_counts(const ExpertOrder& order, Group& group);
  // `counts`: of this order. `padded`: whether rows that arrive are padded.
  RowRoute(ExpertOrder order, const Counts& counts, bool padded, std::shared_ptr<Group> group);

  int64_t received() const { return received_; }  // with rows of zeros
  const std::vector<int64_t>& local_counts() const {
    return local_counts_;
  }  // rows that came for each of this rank's experts
  // The same as ExpertOrder::bounds, where `order` had them.
  const at::Tensor& local_bounds() const { return local_bounds_; }
  bool padded() const { return padded_; }

  // A message under way; between its start and its end the rank may compute.
  struct Flight;
  // Sends the rows of x [T, width] that `order` names and their weights [T, k] (undefined: none) to
  // the ranks of their experts.
  Flight start(const at::Tensor& x, const at::Tensor& weights) const;
  // [received(), width] by local expert, within one by source rank.
  Rows finish(Flight flight) const;
  // The way back of what finish() gave, or of results in its order.
  Flight start_back(const Rows& rows) const;
  // The sum of each token's rows [T, width], and the numbers of its assignments [T, k], 0 for
  // masked ones.
  Rows finish_back(Flight flight) const;

 private:
  struct Sizes;
  struct Block;
  int64_t count(int64_t source, int64_t expert) const {
    return counts_[static_cast<size_t>(source * experts_ + expert)];
  }
  int64_t between(int64_t source, int64_t destination) const {  // rows
    return between_[static_cast<size_t>(source * ranks_ + destination)];
  }
  static Sizes sizes_of(const Rows& own);
  // f(first of them among the rows of one source for this rank, where they lie here, how many) for
  // each local expert.
  template <class F>
  void each_segment(int64_t source, F f) const;
  Flight send(const Rows& own, bool back,
              const std::function<void(int64_t peer, const Block&)>& pack) const;
  // Without `unpack` it only waits.
  void receive(Flight& flight, const std::function<void(int64_t peer, const Block&)>& unpack) const;
  at::Tensor sums(const Flight& flight, const std::vector<at::Tensor>& from) const;
  // On a device what is launched does not grow with the ranks and the experts.
  void find_places();
  Flight send_from_device(const Rows& own, bool back) const;
  Rows finish_on_device(Flight flight) const;
  Rows finish_back_on_device(Flight flight) const;

  ExpertOrder order_;
  std::shared_ptr<Group> group_;
  int64_t ranks_, me_, experts_, local_;  // experts of all ranks, and of one
  bool padded_;
  std::vector<int64_t> counts_;   // [ranks, experts]
  std::vector<int64_t> between_;  // [ranks, ranks]
  std::vector<int64_t> local_counts_;
  at::Tensor local_bounds_;
  std::vector<int64_t> places_;  // [local, ranks]: where the rows of an expert from a rank begin
                                 // among those received
  std::vector<int64_t> begins_;  // [ranks + 1]: where the rows for a rank begin in `order`
  int64_t received_ = 0;
  // On a device: where the rows for this rank, by source and expert, lie here.
  RowPlaces on_device_;
  int64_t from_lower_ = 0;  // of them, from ranks before this one
  bool anything_moves_ = false;
};

// What one message says of each row.
struct RowRoute::Sizes {
  int64_t width = 0;
  at::TensorOptions rows;
  std::optional<at::ScalarType> weights;
  int64_t row_bytes(int64_t n) const {
    return n * width * static_cast<int64_t>(rows.dtype().itemsize());
  }
  int64_t weight_bytes(int64_t n) const {
    return weights ? n * static_cast<int64_t>(c10::elementSize(*weights)) : 0;
  }
  // Layout of the message to one rank: the weights, then the rows, each type at a multiple of its
  // size.
  int64_t unit() const;
  int64_t rows_at(int64_t n) const;
  int64_t bytes(int64_t n) const;
  // On a device each row has its weight at its end instead, and the next row begins so many bytes
  // behind: one index finds both, whichever rank a row came from.
  int64_t pitch() const;
  at::Tensor rows_in(const at::Tensor& messages) const;     // [n, width] of [n, pitch()] bytes
  at::Tensor weights_in(const at::Tensor& messages) const;  // [n]
};

struct RowRoute::Flight {
  Sizes sizes;
  bool back = false, mapped = false;
  Rows
      own;  // what this rank's own rows are taken from when they arrive: the tensors that were sent
  Work under_way;
  at::Tensor packed, arrived;  // arrived: through sockets
};

}  // namespace meshwright::detail
