// gloo: sockets between hosts, in the memory of the host. Its all-gather and all-to-all copy what
// may stay in place, so those are messages from rank to rank here. Several back ends are as many
// connections between any two ranks: what is large goes in parts over all of them, and smaller
// messages take turns.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>

#include "c10d_flight.h"
#include "host_lane.h"
#include "parts.h"

namespace meshwright::detail {

using at::Tensor;

namespace {

// Larger sums than this come in pieces of a quarter: they need no second tensor.
constexpr int64_t kPairSumBytes = int64_t{4} << 20;

// Tensors of pair sums that have ended, for the next one of the same size.
class Spares {
 public:
  Tensor take(const Tensor& like) {
    auto kept = std::find_if(kept_.begin(), kept_.end(), [&](const Tensor& t) {
      return t.numel() == like.numel() && t.scalar_type() == like.scalar_type();
    });
    if (kept != kept_.end()) {
      Tensor out = kept->view(like.sizes());
      kept_.erase(kept);
      return out;
    }
    if (kept_.size() > 3) kept_.erase(kept_.begin());
    return at::empty_like(like, like.options());
  }
  void keep(Tensor tensor) { kept_.push_back(std::move(tensor)); }

 private:
  std::vector<Tensor> kept_;
};

class GlooFlight final : public C10dFlight {
 public:
  // What gloo reads or writes in place of `t`: itself, or a copy in the host's memory, which wait()
  // copies back.
  Tensor input(const Tensor& t) {
    if (t.is_cpu()) return t;
    lent_.emplace_back(Tensor(), t.cpu());
    return lent_.back().second;
  }
  Tensor output(const Tensor& t, bool also_input = false) {
    if (t.is_cpu()) return t;
    lent_.emplace_back(t,
                       also_input ? t.cpu() : at::empty(t.sizes(), t.options().device(at::kCPU)));
    return lent_.back().second;
  }
  // wait() copies `from` to `into`.
  void copy_at_end(const Tensor& into, const Tensor& from) { lent_.emplace_back(into, from); }
  // wait() adds `other`, which comes from the other rank, to `sum`.
  Tensor sum_with_other(const Tensor& sum, Spares& spares) {
    sum_ = sum;
    spares_ = &spares;
    return other_ = spares.take(sum);
  }
  void wait() override {
    C10dFlight::wait();
    for (auto& [into, from] : lent_)
      if (into.defined()) into.copy_(from);
    if (!other_.defined()) return;
    at::add_out(sum_, sum_, other_);
    spares_->keep(std::move(other_));
  }

 private:
  std::vector<std::pair<Tensor, Tensor>> lent_;  // to write at the end (or none), from the host's
  Tensor sum_, other_;
  Spares* spares_ = nullptr;
};

Tensor slot(const Tensor& flat, int64_t index, int64_t count) {
  int64_t each = flat.numel() / count;
  return flat.narrow(0, index * each, each);
}

class GlooTransport final : public Transport {
 public:
  // Another transport over the same back ends, for another thread, needs another `first_message`
  // and the same `starts`.
  explicit GlooTransport(std::vector<c10::intrusive_ptr<c10d::Backend>> backends,
                         int first_message = kMessages,
                         std::shared_ptr<std::mutex> starts = std::make_shared<std::mutex>())
      : backends_(std::move(backends)),
        n_(backends_[0]->getSize()),
        me_(backends_[0]->getRank()),
        first_message_(first_message),
        starts_(std::move(starts)) {
    sent_.resize(static_cast<size_t>(n_));
    received_.resize(static_cast<size_t>(n_));
  }

  FlightPtr all_gather(const Tensor& shard, const Tensor& whole) override {
    auto out = std::make_unique<GlooFlight>();
    Tensor in = out->input(shard), all = out->output(whole);
    int tag = next_tag(collectives_);
    for (int64_t k = 1; k < n_; ++k)
      receive(*out, slot(all, (me_ + k) % n_, n_), (me_ + k) % n_, tag);
    for (int64_t k = 1; k < n_; ++k) send(*out, in, (me_ + k) % n_, tag);
    return out;
  }

  // Directly to each peer: least bytes and no copy of the own slot (gloo's all-to-all refuses to
  // leave that out).
  FlightPtr pairwise_exchange(const Tensor& packed, const Tensor& received) override {
    auto out = std::make_unique<GlooFlight>();
    bool own = packed.numel() != received.numel();
    int tag = next_tag(collectives_);
    Tensor in = out->input(packed), into = out->output(received);
    auto place = [&](int64_t peer) { return peer < me_ ? peer : peer - 1; };
    for (int64_t k = 1; k < n_; ++k) {
      int64_t peer = (me_ + n_ - k) % n_;
      receive(*out, slot(into, place(peer), n_ - 1), peer, tag);
    }
    for (int64_t k = 1; k < n_; ++k) {
      int64_t peer = (me_ + k) % n_;
      send(*out, own ? slot(in, peer, n_) : slot(in, place(peer), n_ - 1), peer, tag);
    }
    return out;
  }

  FlightPtr reduce_scatter(const Tensor& packed, const Tensor& shard) override {
    auto out = std::make_unique<GlooFlight>();
    if (number_of_parts(packed) > 1) {
      // gloo's own is the sum of a copy, too.
      const Tensor sums = (packed.is_cpu() ? packed.clone() : packed.cpu()).view({-1});
      sum_in_parts(*out, sums, ReduceOp::sum);
      out->copy_at_end(shard, slot(sums, me_, n_).view(shard.sizes()));
      return out;
    }
    Tensor in = out->input(packed), into = out->output(shard);
    start(*out, [&] { return backends_[0]->_reduce_scatter_base(into, in); });
    return out;
  }

  FlightPtr all_reduce(const Tensor& tensor, ReduceOp op, bool control) override {
    auto out = std::make_unique<GlooFlight>();
    if (op == ReduceOp::sum && !control && n_ == 2 && tensor.is_cpu()) {
      // Two ranks: both tensors cross at once and each rank adds, which takes half the turns of
      // gloo's own; a + b = b + a bitwise.
      if (static_cast<int64_t>(tensor.nbytes()) > kPairSumBytes)
        return pair_lane().start([tensor](HostLane& lane) { sum_with_other(lane, tensor); },
                                 1 - me_);
      swap_pair(*out, tensor, out->sum_with_other(tensor, spares_));
      return out;
    }
    sum_in_parts(*out, out->output(tensor, /*also_input=*/true), op);
    return out;
  }

  FlightPtr broadcast(const Tensor& tensor, int64_t root) override {
    auto out = std::make_unique<GlooFlight>();
    each_part(out->output(tensor, /*also_input=*/true), /*turn=*/0,
              [&](c10d::Backend& backend, const Tensor& part) {
                std::vector<Tensor> tensors = one(part);
                start(*out, [&] { return backend.broadcast(tensors, from_root(root)); });
              });
    return out;
  }

  // Directly to each peer: gloo's own keeps the tensors until a thread of its own lets them go.
  FlightPtr all_to_all(const Tensor& in, std::span<const int64_t> in_splits,
                       const Tensor& out_tensor, std::span<const int64_t> out_splits) override {
    auto out = std::make_unique<GlooFlight>();
    Tensor from = out->input(in), into = out->output(out_tensor);
    int tag = next_tag(collectives_);
    auto rows = [](const Tensor& all, std::span<const int64_t> splits, int64_t rank) {
      return all.narrow(0, std::accumulate(splits.begin(), splits.begin() + rank, int64_t{0}),
                        splits[static_cast<size_t>(rank)]);
    };
    for (int64_t k = 1; k < n_; ++k) {
      int64_t peer = (me_ + n_ - k) % n_;
      if (Tensor to = rows(into, out_splits, peer); to.numel() > 0) receive(*out, to, peer, tag);
    }
    for (int64_t k = 1; k < n_; ++k) {
      int64_t peer = (me_ + k) % n_;
      if (Tensor mine = rows(from, in_splits, peer); mine.numel() > 0) send(*out, mine, peer, tag);
    }
    rows(into, out_splits, me_).copy_(rows(from, in_splits, me_));
    return out;
  }

  // A tag of its own for every message of a pair and direction; the other ranks need not know of
  // it.
  FlightPtr send_receive(std::span<const PeerMessage> messages) override {
    auto out = std::make_unique<GlooFlight>();
    out->name_peer_of(messages);
    for (PeerMessage::Way way : {PeerMessage::Way::receive, PeerMessage::Way::send})
      for (const PeerMessage& message : messages) {
        if (message.way != way) continue;
        auto peer = static_cast<size_t>(message.peer);
        if (way == PeerMessage::Way::receive)
          receive(*out, out->output(message.tensor), message.peer, message_tag(received_[peer]));
        else
          send(*out, out->input(message.tensor), message.peer, message_tag(sent_[peer]));
      }
    return out;
  }

  FlightPtr barrier() override {
    auto out = std::make_unique<GlooFlight>();
    start(*out, [&] { return backends_[0]->barrier({}); });
    return out;
  }

 private:
  // Tags of messages lie above those of collectives, and those of the lane's above these.
  static constexpr int kMessages = 1 << 30, kLaneMessages = kMessages + (1 << 29);
  static int next_tag(int& last) { return last = (last + 1) & (kMessages - 1); }
  int message_tag(int& last) const {
    return first_message_ + (last = (last + 1) & (kLaneMessages - kMessages - 1));
  }

  int64_t number_of_parts(const Tensor& tensor) const {
    return LinkParts(static_cast<int64_t>(tensor.nbytes()), std::ssize(backends_)).number;
  }
  // Calls f(back end, part) for each part of the tensor, which is contiguous; the first goes to the
  // back end of number `turn`, on all ranks alike.
  template <class F>
  void each_part(const Tensor& tensor, int turn, F&& f) {
    const LinkParts parts(static_cast<int64_t>(tensor.nbytes()), std::ssize(backends_));
    auto backend = [&](int64_t part) -> c10d::Backend& {
      return *backends_[(static_cast<size_t>(turn) + static_cast<size_t>(part)) % backends_.size()];
    };
    if (parts.number == 1) {
      f(backend(0), tensor);
      return;
    }
    const auto width = static_cast<int64_t>(tensor.element_size());
    const Tensor flat = tensor.view({-1});
    for (int64_t i = 0; i < parts.number; ++i)
      f(backend(i), flat.narrow(0, parts.begin(i) / width, parts.size(i) / width));
  }
  // Of two ranks: the same sums to the bit in however many parts. Among more gloo adds in an order
  // that depends on where in its part an element lies.
  void sum_in_parts(C10dFlight& flight, const Tensor& tensor, ReduceOp op) {
    each_part(tensor, /*turn=*/0, [&](c10d::Backend& backend, const Tensor& part) {
      std::vector<Tensor> tensors = one(part);
      start(flight, [&] { return backend.allreduce(tensors, reduced_by(op)); });
    });
  }
  void send(C10dFlight& flight, const Tensor& tensor, int64_t peer, int tag) {
    each_part(tensor, tag, [&](c10d::Backend& backend, const Tensor& part) {
      std::vector<Tensor> tensors = one(part);
      start(flight, [&] { return backend.send(tensors, static_cast<int>(peer), tag); });
    });
  }
  void receive(C10dFlight& flight, const Tensor& tensor, int64_t peer, int tag) {
    each_part(tensor, tag, [&](c10d::Backend& backend, const Tensor& part) {
      std::vector<Tensor> tensors = one(part);
      start(flight, [&] { return backend.recv(tensors, static_cast<int>(peer), tag); });
    });
  }
  // Two ranks: `mine` goes over while `other` comes. Broadcasts would queue on gloo's thread, so
  // that half of a link would rest.
  void swap_pair(C10dFlight& flight, const Tensor& mine, const Tensor& other) {
    int tag = next_tag(collectives_);
    receive(flight, other, 1 - me_, tag);
    send(flight, mine, 1 - me_, tag);
  }

  // A back end counts what it starts, for one thread at a time.
  template <class F>
  void start(C10dFlight& flight, F&& begin) {
    const std::lock_guard lock(*starts_);
    flight.start(begin());
  }
  // Of two ranks: where large sums go on without the thread that started them.
  HostLane& pair_lane() {
    if (!pair_lane_)
      pair_lane_ =
          std::make_unique<HostLane>(std::make_shared<GlooTransport>(backends_, kLaneMessages),
                                     nullptr, kPairSumBytes / 4, nullptr, me_, HostMap({0, 1}));
    return *pair_lane_;
  }

  std::vector<c10::intrusive_ptr<c10d::Backend>> backends_;  // one a connection, one at least
  int64_t n_, me_;
  int first_message_;
  std::shared_ptr<std::mutex> starts_;
  int collectives_ = 0;
  std::vector<int> sent_, received_;  // by peer: tags of the last messages
  Spares spares_;
  std::unique_ptr<HostLane> pair_lane_;
};

}  // namespace

std::shared_ptr<Transport> gloo_transport(std::vector<c10::intrusive_ptr<c10d::Backend>> backends) {
  return std::make_shared<GlooTransport>(std::move(backends));
}

}  // namespace meshwright::detail
