// Long because rings and mailboxes are two halves of one transport.
#include "shared_memory.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "group_impl.h"
#include "host_lane.h"
#include "parts.h"
#include "shared_memory_ring.h"

namespace meshwright::detail {

using at::Tensor;
using Ring = SharedMemoryRing;

namespace {

// A message of every rank in shared memory.
struct RingMessage {
  Ring::Channel channel = Ring::gather;
  int64_t sequence = 0, count = 0;
  at::ScalarType type = at::kFloat;
  const void* own = nullptr;  // this rank's slot
  int64_t bytes() const { return count * static_cast<int64_t>(c10::elementSize(type)); }
};

// What a ring has to say, in the words of transports. `only`: in a ring of two, the place in the
// group of the other one.
template <class F>
auto told(F&& f, int64_t only = -1) {
  try {
    return f();
  } catch (const Ring::Late& late) {
    throw PeerLate{only < 0 ? late.peer : only};
  } catch (const Ring::Gone& gone) {
    throw PeerGone{only < 0 ? gone.peer : only};
  }
}

class RingFlight : public Flight {
 public:
  RingFlight(std::shared_ptr<Ring> ring, std::shared_ptr<const Place> place, int64_t rank,
             RingMessage message)
      : ring_(std::move(ring)), place_(std::move(place)), rank_(rank), message_(message) {}
  ~RingFlight() override { give_back(); }
  bool lends() const override { return !slots_.empty(); }
  void wait() override {
    std::vector<const void*> slots(place_->ranks.size(), nullptr);
    told([&] {
      for (int64_t r = 0; r < ranks(); ++r)
        slots[static_cast<size_t>(r)] = r == rank_
                                            ? message_.own
                                            : ring_->read(message_.channel, r, message_.bytes(),
                                                          message_.sequence, place_->timeout);
    });
    slots_ = std::move(slots);
  }
  Tensor peer(int64_t rank) const override {
    if (slots_.empty() || rank == rank_) return {};
    const auto* at = static_cast<const char*>(slots_[static_cast<size_t>(rank)]);
    if (message_.channel == Ring::reduce) {
      int64_t mine = rank_ < rank ? rank_ : rank_ - 1;  // our place among the peer's peers
      at += static_cast<size_t>(mine * message_.bytes());
    }
    return at::from_blob(const_cast<char*>(at), {message_.count},
                         at::TensorOptions().dtype(message_.type));
  }

 protected:
  int64_t ranks() const { return static_cast<int64_t>(place_->ranks.size()); }
  void give_back() {
    if (slots_.empty()) return;
    for (int64_t r = 0; r < ranks(); ++r)
      if (r != rank_) ring_->give_back(message_.channel, r, message_.sequence);
    slots_.clear();
  }
  void* slot(int64_t rank) const { return const_cast<void*>(slots_[static_cast<size_t>(rank)]); }

 private:
  std::shared_ptr<Ring> ring_;
  std::shared_ptr<const Place> place_;
  int64_t rank_;
  RingMessage message_;
  std::vector<const void*> slots_;  // by rank, after wait()
};

// Every rank adds up all ranks' tensors, in the order of the ranks, so that the results are bitwise
// identical.
class RingSum final : public RingFlight {
 public:
  RingSum(std::shared_ptr<Ring> ring, std::shared_ptr<const Place> place, int64_t rank,
          RingMessage message, Tensor sum)
      : RingFlight(std::move(ring), std::move(place), rank, message), sum_(std::move(sum)) {}
  void wait() override {
    RingFlight::wait();
    auto part = [&](int64_t rank) {
      return at::from_blob(slot(rank), sum_.sizes(), sum_.options());
    };
    at::add_out(sum_, part(0), part(1));
    for (int64_t r = 2; r < ranks(); ++r) sum_.add_(part(r));
    give_back();
  }

 private:
  Tensor sum_;
};

// Messages between this rank and one other, each put down once.
struct Mailbox {
  std::shared_ptr<Ring> ring;    // of two; none: there was no room
  int64_t bytes = 0, slots = 0;  // asked for
  int64_t me = 0, peer = 0;      // places in the ring; the other's in the group
  int64_t next_received = 1;     // sequence of what the next receive takes
};

// The next message in a mailbox. What nobody has waited for is given back too: it is not wanted any
// more.
class Letter {
 public:
  explicit Letter(Mailbox& box)
      : ring_(box.ring), from_(1 - box.me), peer_(box.peer), sequence_(box.next_received++) {}
  ~Letter() { ring_->give_back(Ring::reduce, from_, sequence_); }
  Letter(const Letter&) = delete;
  Letter& operator=(const Letter&) = delete;
  int64_t peer() const { return peer_; }
  // Waits. Valid while the letter lives.
  Tensor read(at::IntArrayRef sizes, at::ScalarType type, std::chrono::milliseconds timeout) const {
    const int64_t bytes =
        c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(type));
    const void* at =
        told([&] { return ring_->read(Ring::reduce, from_, bytes, sequence_, timeout); }, peer_);
    return at::from_blob(const_cast<void*>(at), sizes, at::TensorOptions().dtype(type));
  }

 private:
  std::shared_ptr<Ring> ring_;
  int64_t from_, peer_, sequence_;
};

class MailFlight final : public Flight {
 public:
  MailFlight(std::chrono::milliseconds timeout, int64_t awaited)
      : timeout_(timeout), awaited_(awaited) {}
  void expect(Mailbox& box, const Tensor& into) {
    letters_.emplace_back(std::make_unique<Letter>(box), into);
  }
  void add(Transport::FlightPtr others) { others_ = std::move(others); }
  void wait() override {
    for (auto& [letter, into] : letters_) {
      into.copy_(letter->read(into.sizes(), into.scalar_type(), timeout_));
      letter.reset();
    }
    if (others_) others_->wait();
  }
  std::span<const c10::intrusive_ptr<c10d::Work>> handles() const override {
    return others_ ? others_->handles() : std::span<const c10::intrusive_ptr<c10d::Work>>();
  }
  int64_t awaited() const override { return awaited_; }

 private:
  std::chrono::milliseconds timeout_;
  int64_t awaited_;
  std::vector<std::pair<std::unique_ptr<Letter>, Tensor>> letters_;  // where each goes
  Transport::FlightPtr others_;
};

// A message that is read where it lies.
class LentMail final : public Flight {
 public:
  LentMail(Mailbox& box, int64_t count, at::ScalarType type, std::chrono::milliseconds timeout)
      : letter_(box), count_(count), type_(type), timeout_(timeout) {}
  void wait() override { read_ = letter_.read({count_}, type_, timeout_); }
  bool lends() const override { return read_.defined(); }
  Tensor peer(int64_t rank) const override { return rank == letter_.peer() ? read_ : Tensor(); }
  int64_t awaited() const override { return letter_.peer(); }

 private:
  Letter letter_;
  int64_t count_;
  at::ScalarType type_;
  std::chrono::milliseconds timeout_;
  Tensor read_;
};

class SharedMemoryTransport final : public Transport {
 public:
  SharedMemoryTransport(std::shared_ptr<Transport> sockets, std::shared_ptr<const Place> place,
                        int64_t rank, bool one_host)
      : sockets_(std::move(sockets)), place_(std::move(place)), rank_(rank), one_host_(one_host) {}

  bool has_native_reduce_scatter() const override { return sockets_->has_native_reduce_scatter(); }
  bool fits(Ring::Channel channel, int64_t bytes) const {
    return ring_ && ring_->fits(channel, bytes);
  }
  int64_t largest_gather() const { return room_.slot[Ring::gather]; }
  // Whether room of that size has not been asked for yet.
  bool lacks(int64_t gather_bytes, int64_t exchange_bytes, int64_t ahead) const {
    return one_host_ && (!tried_ || (ring_ && (gather_bytes > room_.slot[Ring::gather] ||
                                               exchange_bytes > room_.slot[Ring::reduce] ||
                                               ahead + 2 > room_.ring[Ring::gather])));
  }
  void make_room(Group& group, int64_t gather_bytes, int64_t exchange_bytes, int64_t ahead);

  bool takes(int64_t peer, int64_t bytes) const {
    auto found = mailboxes_.find(peer);
    return found != mailboxes_.end() && found->second.ring &&
           found->second.ring->fits(Ring::reduce, bytes);
  }
  void open_mailbox(const MailboxNeed& need);
  FlightPtr receive_in_place(int64_t peer, int64_t count, at::ScalarType type) {
    return std::make_unique<LentMail>(mailboxes_[peer], count, type, place_->timeout);
  }

  Tensor stage(int64_t count, at::ScalarType type) {
    staged_.channel = Ring::reduce;
    staged_.count = count;
    staged_.type = type;
    staged_.own = take(staged_, staged_.bytes());
    staged_.count /= static_cast<int64_t>(place_->ranks.size()) - 1;
    return at::from_blob(const_cast<void*>(staged_.own), {count}, at::TensorOptions().dtype(type));
  }
  // Messages differ from rank to rank; each lies where the largest would.
  Tensor stage_rows(int64_t bytes) {
    rows_.count = largest_gather();
    rows_.type = at::kByte;
    rows_.own = take(rows_, rows_.bytes());
    return at::from_blob(const_cast<void*>(rows_.own), {bytes},
                         at::TensorOptions().dtype(at::kByte));
  }
  FlightPtr exchange_staged() { return publish(rows_); }

  FlightPtr all_gather(const Tensor& shard, const Tensor& whole) override {
    if (whole.defined()) return sockets_->all_gather(shard, whole);
    return publish(put(shard));
  }
  FlightPtr pairwise_exchange(const Tensor& packed, const Tensor& received) override {
    if (staged_.own == nullptr || packed.const_data_ptr() != staged_.own)
      return sockets_->pairwise_exchange(packed, received);
    RingMessage message = staged_;
    staged_.own = nullptr;
    return publish(message);
  }
  FlightPtr all_reduce(const Tensor& tensor, ReduceOp op, bool control) override {
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    if (op == ReduceOp::sum && !control && bytes >= kLargeSum && !fits(Ring::gather, bytes))
      if (sums_) return sums_->start([tensor](HostLane& on) { sum_everywhere(on, tensor); });
    if (op != ReduceOp::sum || !fits(Ring::gather, bytes))
      return sockets_->all_reduce(tensor, op, control);
    RingMessage message = put(tensor);
    ring_->publish(message.channel, message.sequence);
    return std::make_unique<RingSum>(ring_, place_, rank_, message, tensor);
  }
  FlightPtr reduce_scatter(const Tensor& packed, const Tensor& shard) override {
    return sockets_->reduce_scatter(packed, shard);
  }
  FlightPtr broadcast(const Tensor& tensor, int64_t root) override {
    return sockets_->broadcast(tensor, root);
  }
  FlightPtr all_to_all(const Tensor& in, std::span<const int64_t> in_splits, const Tensor& out,
                       std::span<const int64_t> out_splits) override {
    return sockets_->all_to_all(in, in_splits, out, out_splits);
  }
  FlightPtr send_receive(std::span<const PeerMessage> messages) override {
    std::vector<PeerMessage> others;
    for (const PeerMessage& message : messages)
      if (mailbox(message) == nullptr) others.push_back(message);
    if (others.size() == messages.size()) return sockets_->send_receive(messages);
    const bool one_peer = std::all_of(messages.begin(), messages.end(), [&](const PeerMessage& m) {
      return m.peer == messages[0].peer;
    });
    auto out = std::make_unique<MailFlight>(place_->timeout, one_peer ? messages[0].peer : -1);
    if (!others.empty()) out->add(sockets_->send_receive(others));
    for (const PeerMessage& message : messages)
      if (Mailbox* box = mailbox(message); box && message.way == PeerMessage::Way::receive)
        out->expect(*box, message.tensor);
    for (const PeerMessage& message : messages)
      if (Mailbox* box = mailbox(message); box && message.way == PeerMessage::Way::send)
        post(*box, message.tensor);
    return out;
  }
  FlightPtr barrier() override { return sockets_->barrier(); }
  // Collective the first time. Without room, or with several hosts, nothing changes.
  void make_lane_of_sums() {
    if (!one_host_ || std::exchange(sums_tried_, true)) return;
    const auto n = static_cast<int64_t>(place_->ranks.size());
    const int64_t slot = HostLane::slot_for(1);  // no part goes to another host
    auto ring = make_ring(rank_, n, HostLane::room(slot), [&](const Tensor& tensor) {
      sockets_->all_reduce(tensor, ReduceOp::sum, /*control=*/true)->wait();
    });
    if (ring)
      sums_ = std::make_unique<HostLane>(nullptr, std::move(ring), slot, place_, rank_,
                                         HostMap(std::vector<int64_t>(place_->ranks.size(), 0)));
  }

 private:
  // Larger sums than this go on beside the rank's thread.
  static constexpr int64_t kLargeSum = int64_t{64} << 10;

  void* take(RingMessage& message, int64_t bytes) {
    return told(
        [&] { return ring_->stage(message.channel, bytes, message.sequence, place_->timeout); });
  }
  RingMessage put(const Tensor& tensor) {
    RingMessage message;
    message.count = tensor.numel();
    message.type = tensor.scalar_type();
    void* slot = take(message, message.bytes());
    std::memcpy(slot, tensor.const_data_ptr(), tensor.nbytes());
    message.own = slot;
    return message;
  }
  // nullptr: the message takes the sockets, as both ranks know.
  Mailbox* mailbox(const PeerMessage& message) {
    return takes(message.peer, static_cast<int64_t>(message.tensor.nbytes()))
               ? &mailboxes_[message.peer]
               : nullptr;
  }
  void post(Mailbox& box, const Tensor& tensor) {
    int64_t sequence = 0;
    void* slot = told(
        [&] {
          return box.ring->stage(Ring::reduce, static_cast<int64_t>(tensor.nbytes()), sequence,
                                 place_->timeout);
        },
        box.peer);
    at::from_blob(slot, tensor.sizes(), tensor.options()).copy_(tensor);
    box.ring->publish(Ring::reduce, sequence);
  }
  FlightPtr publish(const RingMessage& message) {
    ring_->publish(message.channel, message.sequence);
    return std::make_unique<RingFlight>(ring_, place_, rank_, message);
  }

  std::shared_ptr<Transport> sockets_;
  std::shared_ptr<const Place> place_;
  int64_t rank_;
  bool one_host_;  // as far as is known
  std::shared_ptr<Ring> ring_;
  Ring::Sizes room_;  // what the ring has, or the sizes that could not be had
  bool tried_ = false;
  RingMessage staged_, rows_;             // what stage() and stage_rows() lent
  std::map<int64_t, Mailbox> mailboxes_;  // by place in the group
  bool sums_tried_ = false;
  std::unique_ptr<HostLane> sums_;
};

void SharedMemoryTransport::make_room(Group& group, int64_t gather_bytes, int64_t exchange_bytes,
                                      int64_t ahead) {
  room_.slot[Ring::gather] = std::max(room_.slot[Ring::gather], gather_bytes);
  room_.slot[Ring::reduce] = std::max(room_.slot[Ring::reduce], exchange_bytes);
  // One slot less could leave two ranks waiting for each other.
  room_.ring[Ring::gather] = std::max(tried_ ? room_.ring[Ring::gather] : 0, ahead + 2);
  room_.ring[Ring::reduce] = 2;
  tried_ = true;
  ring_.reset();
  ring_ = make_ring(rank_, static_cast<int64_t>(place_->ranks.size()), room_,
                    [&](const Tensor& tensor) {
                      group.all_reduce(tensor, ReduceOp::sum, /*control=*/true).wait();
                    });
}

void SharedMemoryTransport::open_mailbox(const MailboxNeed& need) {
  Mailbox& box = mailboxes_[need.peer];
  if (need.bytes <= box.bytes && need.slots <= box.slots) return;
  // Messages that grow from run to run do not ask for new room each time.
  const int64_t bytes = need.bytes <= box.bytes ? box.bytes : std::max(need.bytes, 2 * box.bytes),
                slots = std::max(need.slots, box.slots), me = rank_ < need.peer ? 0 : 1;
  std::shared_ptr<Ring> ring;
  if (bytes > 0) {
    Ring::Sizes sizes;
    sizes.slot[Ring::reduce] = bytes;
    sizes.ring[Ring::reduce] = slots;
    ring = make_ring(me, 2, sizes, [&](const Tensor& tensor) {
      const Tensor mine = tensor.clone(), other = at::empty_like(tensor);
      const std::array<PeerMessage, 2> both{
          PeerMessage{PeerMessage::Way::receive, need.peer, other},
          PeerMessage{PeerMessage::Way::send, need.peer, mine}};
      sockets_->send_receive(both)->wait();
      tensor.add_(other);
    });
  }
  // Both ranks know that there was no room for it: with fewer slots than were asked for, messages
  // take the sockets.
  box = {.ring = std::move(ring), .bytes = bytes, .slots = slots, .me = me, .peer = need.peer};
}

SharedMemoryTransport* shared_memory_of(const Group& group) {
  return dynamic_cast<SharedMemoryTransport*>(GroupAccess::of(group).transport.get());
}

SharedMemoryTransport& mapped(const Group& group) {
  return static_cast<SharedMemoryTransport&>(*GroupAccess::of(group).transport);
}

}  // namespace

void reserve(Group& group, int64_t gather_bytes, int64_t exchange_bytes, int64_t ahead) {
  SharedMemoryTransport* shared = shared_memory_of(group);
  if (shared != nullptr && shared->lacks(gather_bytes, exchange_bytes, ahead))
    shared->make_room(group, gather_bytes, exchange_bytes, ahead);
}

void expect_large_sums(Group& group) {
  if (SharedMemoryTransport* shared = shared_memory_of(group))
    GroupAccess::guarded(GroupAccess::of(group), "all_reduce", 64, -1, [&] {
      shared->make_lane_of_sums();
      return 0;
    });
}

bool maps_gather(const Group& group, int64_t bytes) {
  SharedMemoryTransport* shared = shared_memory_of(group);
  return shared != nullptr && shared->fits(Ring::gather, bytes);
}

bool maps_exchange(const Group& group, int64_t bytes) {
  SharedMemoryTransport* shared = shared_memory_of(group);
  return shared != nullptr && shared->fits(Ring::reduce, bytes);
}

void open_mailboxes(Group& group, std::vector<MailboxNeed> needs) {
  SharedMemoryTransport* shared = shared_memory_of(group);
  if (shared == nullptr) return;
  const auto pair = [&](const MailboxNeed& need) {
    return std::pair(std::min(group.rank(), need.peer), std::max(group.rank(), need.peer));
  };
  std::sort(needs.begin(), needs.end(),
            [&](const MailboxNeed& a, const MailboxNeed& b) { return pair(a) < pair(b); });
  for (const MailboxNeed& need : needs)
    GroupAccess::guarded(GroupAccess::of(group), "send_receive", 64, need.peer,
                         [&] { shared->open_mailbox(need); });
}

bool maps_message(const Group& group, int64_t peer, int64_t bytes) {
  SharedMemoryTransport* shared = shared_memory_of(group);
  return shared != nullptr && shared->takes(peer, bytes);
}

Work receive_in_place(Group& group, int64_t peer, int64_t count, at::ScalarType type) {
  const int64_t bytes = count * static_cast<int64_t>(c10::elementSize(type));
  return GroupAccess::exchange(
      group, bytes, [&](Transport&) { return mapped(group).receive_in_place(peer, count, type); },
      [&](CollectiveLog& log, int64_t ticket) {
        log.message(ticket, GroupAccess::of(group).logged_as, peer, /*sent=*/false, bytes);
      });
}

Tensor stage(Group& group, int64_t count, at::ScalarType type) {
  int64_t bytes = count * static_cast<int64_t>(c10::elementSize(type));
  return GroupAccess::guarded(GroupAccess::of(group), "reduce_scatter", bytes, -1,
                              [&] { return mapped(group).stage(count, type); });
}

Tensor stage_rows(Group& group, int64_t bytes) {
  SharedMemoryTransport& shared = mapped(group);
  return GroupAccess::guarded(GroupAccess::of(group), "all_to_all", shared.largest_gather(), -1,
                              [&] { return shared.stage_rows(bytes); });
}

Work exchange_staged(Group& group, int64_t moved) {
  return GroupAccess::begin(group, "all_to_all", moved, moved,
                            [&](Transport&) { return mapped(group).exchange_staged(); });
}

Tensor peer(const Work& work, int64_t rank) {
  const Flight* flight = GroupAccess::flight(work);
  return flight == nullptr ? Tensor() : flight->peer(rank);
}

Tensor registered_memory(const Group& group, int64_t bytes) {
  const Group::Impl& g = GroupAccess::of(group);
  if (!g.transport) return {};
  return GroupAccess::guarded(g, "registered_memory", bytes, -1,
                              [&] { return g.transport->registered_memory(bytes); });
}

std::shared_ptr<Transport> shared_memory_over(std::shared_ptr<Transport> sockets,
                                              std::shared_ptr<const Place> place, int64_t rank,
                                              bool one_host) {
  return std::make_shared<SharedMemoryTransport>(std::move(sockets), std::move(place), rank,
                                                 one_host);
}

}  // namespace meshwright::detail

namespace meshwright {

void expect_all_reduces(Group& group, int64_t bytes) {
  detail::reserve(group, bytes, 0, /*ahead=*/0);
}

}  // namespace meshwright
