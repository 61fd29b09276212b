// A transport that delays, reorders and loses: what a bad network does, at will.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sdk/base/transport.h"
#include "sdk/comm/group_impl.h"

namespace meshwright::testing {

struct Faults {
  uint64_t seed = 1;
  int max_delay_us = 0;  // each operation starts, and each wait ends, up to so much later
  bool reorder = false;  // messages of one call for different ranks start in any order
  int64_t lose = -1;     // the rank's send of this number, counted from 0, never leaves
  int64_t stop = -1;     // the rank's operation of this number throws
};

// Hands everything on to another transport, with one place to do something about it.
class ThroughTransport : public Transport {
 public:
  explicit ThroughTransport(std::shared_ptr<Transport> inner) : inner_(std::move(inner)) {}
  bool has_native_reduce_scatter() const override { return inner_->has_native_reduce_scatter(); }
  FlightPtr all_gather(const at::Tensor& shard, const at::Tensor& whole) override {
    return pass(shard.nbytes(), [&] { return inner_->all_gather(shard, whole); });
  }
  FlightPtr pairwise_exchange(const at::Tensor& packed, const at::Tensor& received) override {
    return pass(packed.nbytes(), [&] { return inner_->pairwise_exchange(packed, received); });
  }
  FlightPtr reduce_scatter(const at::Tensor& packed, const at::Tensor& shard) override {
    return pass(packed.nbytes(), [&] { return inner_->reduce_scatter(packed, shard); });
  }
  FlightPtr all_reduce(const at::Tensor& tensor, ReduceOp op, bool control) override {
    return pass(control ? 0 : tensor.nbytes(),
                [&] { return inner_->all_reduce(tensor, op, control); });
  }
  FlightPtr broadcast(const at::Tensor& tensor, int64_t root) override {
    return pass(tensor.nbytes(), [&] { return inner_->broadcast(tensor, root); });
  }
  FlightPtr all_to_all(const at::Tensor& in, std::span<const int64_t> in_splits,
                       const at::Tensor& out, std::span<const int64_t> out_splits) override {
    return pass(in.nbytes(), [&] { return inner_->all_to_all(in, in_splits, out, out_splits); });
  }
  FlightPtr send_receive(std::span<const PeerMessage> messages) override {
    return pass(0, [&] { return inner_->send_receive(messages); });
  }
  FlightPtr barrier() override {
    return pass(0, [&] { return inner_->barrier(); });
  }

 protected:
  // Of so many bytes, those of what only controls and messages apart.
  virtual FlightPtr pass(size_t bytes, const std::function<FlightPtr()>& start) = 0;
  std::shared_ptr<Transport> inner_;
};

// A world whose groups are carried by what `wrap` makes of the transports of `world`.
inline std::shared_ptr<World> world_through(
    const std::shared_ptr<World>& world, std::chrono::milliseconds timeout,
    const std::function<std::shared_ptr<Transport>(std::shared_ptr<Transport>)>& wrap) {
  return make_world(world->rank(), world->size(), at::kCPU, timeout,
                    [world, wrap](const std::string& name, const std::vector<int64_t>& ranks) {
                      return wrap(detail::GroupAccess::of(*world->group(name, ranks)).transport);
                    });
}

class FaultyTransport final : public ThroughTransport {
 public:
  FaultyTransport(std::shared_ptr<Transport> inner, Faults faults)
      : ThroughTransport(std::move(inner)), faults_(faults), random_(faults.seed) {}
  FlightPtr send_receive(std::span<const PeerMessage> messages) override {
    std::vector<PeerMessage> kept;
    for (const PeerMessage& message : messages)
      if (message.way == PeerMessage::Way::receive || sends_++ != faults_.lose)
        kept.push_back(message);
    // Messages between two ranks keep their order, as on any transport.
    if (faults_.reorder) {
      auto turn = random_();
      std::stable_sort(kept.begin(), kept.end(), [&](const PeerMessage& a, const PeerMessage& b) {
        return ((static_cast<uint64_t>(a.peer) * 2654435761U) ^ turn) <
               ((static_cast<uint64_t>(b.peer) * 2654435761U) ^ turn);
      });
    }
    return pass(
        0, [&] { return kept.empty() ? std::make_unique<Nothing>() : inner_->send_receive(kept); });
  }

 private:
  struct Nothing final : Flight {
    void wait() override {}
  };
  struct LateFlight final : Flight {
    LateFlight(FlightPtr flight, int us) : inner(std::move(flight)), delay_us(us) {}
    void wait() override {
      inner->wait();
      std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    }
    bool lends() const override { return inner->lends(); }
    at::Tensor peer(int64_t rank) const override { return inner->peer(rank); }
    int64_t awaited() const override { return inner->awaited(); }
    FlightPtr inner;
    int delay_us;
  };
  int delay() {
    return faults_.max_delay_us == 0
               ? 0
               : static_cast<int>(random_() % static_cast<uint64_t>(faults_.max_delay_us));
  }
  FlightPtr pass(size_t /*bytes*/, const std::function<FlightPtr()>& start) override {
    if (operations_++ == faults_.stop) throw std::runtime_error("stopped by a test");
    std::this_thread::sleep_for(std::chrono::microseconds(delay()));
    return std::make_unique<LateFlight>(start(), delay());
  }

  Faults faults_;
  std::mt19937_64 random_;
  int64_t sends_ = 0, operations_ = 0;
};

// A world whose groups are carried by a faulty transport over that of `world`.
inline std::shared_ptr<World> faulty_world(const std::shared_ptr<World>& world, Faults faults,
                                           std::chrono::milliseconds timeout) {
  faults.seed += static_cast<uint64_t>(world->rank());
  return world_through(world, timeout, [faults](std::shared_ptr<Transport> inner) {
    return std::make_shared<FaultyTransport>(std::move(inner), faults);
  });
}

}  // namespace meshwright::testing
