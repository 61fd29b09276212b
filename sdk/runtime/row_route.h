// The way of token rows to the ranks that hold their experts, and back: an all-to-all whose sizes all ranks know.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "meshwright/group.h"

namespace meshwright::detail {

// Rows and, where there are any, one number beside each (routing weights).
struct Rows {
  at::Tensor rows;     // [n, width]
  at::Tensor weights;  // [n], undefined: none
};

class RowRoute {
 public:
  // Collective. `counts`: this rank's rows for each expert of all ranks, of which each rank holds an equal part in order.
  RowRoute(std::span<const int64_t> counts, std::shared_ptr<Group> group);

  int64_t sent() const { return sent_; }
  int64_t received() const { return received_; }
  const std::vector<int64_t>& local_counts() const { return local_counts_; }  // rows that came for each of this rank's experts

  // A message under way; between its start and its end the rank may compute.
  struct Flight {
    Pending under_way;
    at::Tensor packed, arrived;  // of sockets
    bool mapped = false;
  };
  // Sends row order[i] of `rows` as the i-th: rows lie by expert in that order. weights: one a sent row, in that order. Without `order`
  // the rows lie so already.
  Flight start(const at::Tensor& rows, const at::Tensor& order, const at::Tensor& weights) const;
  // [received(), width] by local expert, within one by source rank. `like`: options of the rows; weights_type: undefined for none.
  Rows finish(Flight flight, int64_t width, const at::TensorOptions& like, std::optional<at::ScalarType> weights_type) const;
  // The way back of what finish() gave, or of results in its order.
  Flight start_back(const Rows& rows) const;
  Rows finish_back(Flight flight, int64_t width, const at::TensorOptions& like, std::optional<at::ScalarType> weights_type) const;

 private:
  int64_t count(int64_t source, int64_t expert) const { return counts_[static_cast<size_t>(source * experts_ + expert)]; }
  int64_t between(int64_t source, int64_t destination) const;  // rows
  struct Sizes;
  Flight send(const Sizes& sizes, bool back,
              const std::function<void(int64_t peer, const at::Tensor& weights, const at::Tensor& rows)>& pack, at::Device device) const;
  void receive(Flight& flight, const Sizes& sizes, bool back,
               const std::function<void(int64_t peer, const at::Tensor& weights, const at::Tensor& rows)>& unpack) const;

  std::shared_ptr<Group> group_;
  int64_t ranks_, me_, experts_, local_;  // experts of all ranks, and of one
  std::vector<int64_t> counts_;           // [ranks, experts]
  std::vector<int64_t> local_counts_;
  std::vector<int64_t> places_;  // [local, ranks]: where the rows of an expert from a rank begin among those received
  int64_t sent_ = 0, received_ = 0;
};

}  // namespace meshwright::detail
