// Collectives of a group on several hosts with as many ranks each: over sockets between ranks of
// one number, over shared memory inside a host.
#include <ATen/ops/add.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "host_lane.h"
#include "make_ring.h"

namespace meshwright::detail {

using at::Tensor;

namespace {

// Smaller ones are over sooner without a second thread.
constexpr int64_t kLeastBytes = 4096;

size_t bytes_in(int64_t count, int64_t width) { return static_cast<size_t>(count * width); }

char* memory_of(const Tensor& tensor) { return static_cast<char*>(tensor.mutable_data_ptr()); }

// into += from, or into = from; by this thread alone: LibTorch spreads more elements over threads.
void put_or_add(char* into, const char* from, int64_t count, at::ScalarType type, bool put) {
  constexpr int64_t kAlone = 32000;
  const auto width = static_cast<int64_t>(c10::elementSize(type));
  if (put) {
    std::memcpy(into, from, bytes_in(count, width));
    return;
  }
  const at::TensorOptions options = at::TensorOptions().dtype(type);
  for (int64_t at = 0; at < count; at += kAlone) {
    const int64_t some = std::min(kAlone, count - at);
    Tensor sum = at::from_blob(into + bytes_in(at, width), {some}, options);
    at::add_out(sum, sum,
                at::from_blob(const_cast<char*>(from) + bytes_in(at, width), {some}, options));
  }
}

// `count` elements in pieces of one size, nearly, which fit into `room` bytes.
struct EvenPieces {
  int64_t count, width, number;
  EvenPieces(int64_t elements, int64_t element_bytes, int64_t room)
      : count(elements), width(element_bytes) {
    const int64_t most = std::max<int64_t>(1, room / width);
    number = (count + most - 1) / most;
  }
  int64_t begin(int64_t piece) const { return count * piece / number; }
  int64_t size(int64_t piece) const { return begin(piece + 1) - begin(piece); }
  size_t bytes(int64_t piece) const { return bytes_in(size(piece), width); }
  int64_t offset(int64_t piece) const { return begin(piece) * width; }
};

PeerMessage sent_to(int64_t host, Tensor tensor) {
  return {PeerMessage::Way::send, host, std::move(tensor)};
}
PeerMessage come_from(int64_t host, Tensor tensor) {
  return {PeerMessage::Way::receive, host, std::move(tensor)};
}

// Calls f(host) for all hosts but this rank's, each rank beginning behind its own.
template <class F>
void each_other_host(const HostLane& lane, F&& f) {
  const int64_t hosts = lane.map().hosts();
  for (int64_t k = 1; k < hosts; ++k) f((lane.host() + k) % hosts);
}

// What a rank wrote in a round about hosts: one part of `part` bytes for each.
const char* slot_part(const char* slot, int64_t host, size_t part) {
  return slot + static_cast<size_t>(host) * part;
}

struct HostGather {
  Tensor shard, whole;
  EvenPieces pieces;
  std::vector<Transport::FlightPtr> coming;  // by piece

  HostGather(HostLane& lane, const Tensor& own, const Tensor& all)
      : shard(own.view({-1})),
        whole(all.view({-1})),
        pieces(own.numel(), static_cast<int64_t>(own.element_size()),
               HostLane::kSlot / lane.map().hosts()) {
    for (int64_t i = 0; i < pieces.number; ++i) {
      std::vector<PeerMessage> messages;
      each_other_host(lane, [&](int64_t host) {
        messages.push_back(
            come_from(host, whole.narrow(0, at(lane, host, lane.local(), i), size(i))));
      });
      each_other_host(lane, [&](int64_t host) {
        messages.push_back(sent_to(host, shard.narrow(0, pieces.begin(i), size(i))));
      });
      coming.push_back(lane.exchange(messages));
    }
  }
  int64_t size(int64_t piece) const { return pieces.size(piece); }
  int64_t at(const HostLane& lane, int64_t host, int64_t number, int64_t piece) const {
    return lane.map().place(host, number) * pieces.count + pieces.begin(piece);
  }
  char* slot(const HostLane& lane, int64_t host, int64_t number, int64_t piece) const {
    return memory_of(whole) + bytes_in(at(lane, host, number, piece), pieces.width);
  }
  void run(HostLane& lane) {
    for (int64_t i = 0; i < pieces.number; ++i)  // while the others' come
      lane.round(
          [&](char* own) {
            std::memcpy(own, static_cast<const char*>(shard.const_data_ptr()) + pieces.offset(i),
                        pieces.bytes(i));
          },
          [&](int64_t number, const char* told) {
            if (number != lane.local())
              std::memcpy(slot(lane, lane.host(), number, i), told, pieces.bytes(i));
          });
    for (int64_t i = 0; i < pieces.number; ++i) {
      lane.await(coming[static_cast<size_t>(i)]);
      const size_t part = pieces.bytes(i);
      lane.round(
          [&](char* own) {
            each_other_host(lane, [&](int64_t host) {
              std::memcpy(own + static_cast<size_t>(host) * part, slot(lane, host, lane.local(), i),
                          part);
            });
          },
          [&](int64_t number, const char* told) {
            if (number == lane.local()) return;
            each_other_host(lane, [&](int64_t host) {
              std::memcpy(slot(lane, host, number, i), slot_part(told, host, part), part);
            });
          });
    }
  }
};

struct HostBroadcast {
  Tensor tensor;
  int64_t host, number;  // of the root
  EvenPieces pieces;
  std::vector<Transport::FlightPtr> coming;

  HostBroadcast(HostLane& lane, const Tensor& what, int64_t root)
      : tensor(what.view({-1})),
        host(lane.map().host[static_cast<size_t>(root)]),
        number(lane.map().local[static_cast<size_t>(root)]),
        pieces(what.numel(), static_cast<int64_t>(what.element_size()), HostLane::kSlot) {
    for (int64_t i = 0; i < pieces.number && lane.local() == number; ++i) {
      const Tensor piece = tensor.narrow(0, pieces.begin(i), pieces.size(i));
      std::vector<PeerMessage> messages;
      if (lane.host() != host) messages.push_back(come_from(host, piece));
      if (lane.host() == host)
        each_other_host(lane, [&](int64_t other) { messages.push_back(sent_to(other, piece)); });
      coming.push_back(lane.exchange(messages));
    }
  }
  void run(HostLane& lane) {
    for (int64_t i = 0; i < pieces.number; ++i) {
      char* here = memory_of(tensor) + pieces.offset(i);
      if (lane.local() == number) lane.await(coming[static_cast<size_t>(i)]);
      lane.round(
          [&](char* own) {
            if (lane.local() == number) std::memcpy(own, here, pieces.bytes(i));
          },
          [&](int64_t teller, const char* told) {
            if (teller == number && lane.local() != number)
              std::memcpy(here, told, pieces.bytes(i));
          });
    }
  }
};

// Piece by piece: while one crosses, the next is added up on the host.
void sum_to_shard(HostLane& lane, const Tensor& packed, const Tensor& shard) {
  const int64_t hosts = lane.map().hosts(), each = lane.map().each(), me = lane.local();
  const at::ScalarType type = shard.scalar_type();
  const EvenPieces pieces(shard.numel(), static_cast<int64_t>(shard.element_size()),
                          HostLane::kSlot / (hosts * each));
  const auto* all = static_cast<const char*>(packed.const_data_ptr());
  auto given = [&](int64_t host, int64_t number, int64_t i) {
    return all +
           bytes_in(lane.map().place(host, number) * pieces.count + pieces.begin(i), pieces.width);
  };
  std::array<Transport::FlightPtr, 2> crossing;
  for (int64_t i = 0; i <= pieces.number; ++i) {
    if (i < pieces.number) {
      const size_t part = pieces.bytes(i);
      const Tensor sums = lane.scratch(i % 2), others = lane.scratch(2 + i % 2);
      lane.round(
          [&](char* own) {
            for (int64_t number = 0; number < each; ++number)
              for (int64_t host = 0; host < hosts && number != me; ++host)
                std::memcpy(own + static_cast<size_t>(number * hosts + host) * part,
                            given(host, number, i), part);
          },
          [&](int64_t number, const char* told) {
            for (int64_t host = 0; host < hosts; ++host)
              put_or_add(
                  memory_of(sums) + static_cast<size_t>(host) * part,
                  number == me ? given(host, me, i) : slot_part(told, me * hosts + host, part),
                  pieces.size(i), type, /*put=*/number == 0);
          });
      const auto bytes = static_cast<int64_t>(part);
      std::vector<PeerMessage> messages;
      each_other_host(lane, [&](int64_t host) {
        messages.push_back(come_from(host, others.narrow(0, host * bytes, bytes)));
      });
      each_other_host(lane, [&](int64_t host) {
        messages.push_back(sent_to(host, sums.narrow(0, host * bytes, bytes)));
      });
      crossing[static_cast<size_t>(i % 2)] = lane.exchange(messages);
    }
    if (i == 0) continue;
    const int64_t last = i - 1;
    lane.await(crossing[static_cast<size_t>(last % 2)]);
    const char *sums = memory_of(lane.scratch(last % 2)),
               *others = memory_of(lane.scratch(2 + last % 2));
    for (int64_t host = 0; host < hosts; ++host)
      put_or_add(memory_of(shard) + pieces.offset(last),
                 slot_part(host == lane.host() ? sums : others, host, pieces.bytes(last)),
                 pieces.size(last), type, /*put=*/host == 0);
  }
}

// Each rank sums a part of every piece: its host's, one alone too, first; of that a share of the
// hosts', which goes to the hosts; the parts then go round on the host. Three pieces are under way
// at once.
class SumEverywhere {
 public:
  SumEverywhere(HostLane& lane, const Tensor& tensor)
      : lane_(lane),
        flat_(tensor.view({-1})),
        memory_(memory_of(tensor)),
        pieces_(tensor.numel(), static_cast<int64_t>(tensor.element_size()), HostLane::kSlot) {}
  void run() {
    for (int64_t i = 0; i < pieces_.number + 2; ++i) {
      if (i < pieces_.number) sum_on_host(i);
      if (i >= 1 && i - 1 < pieces_.number) sum_over_hosts(i - 1);
      if (i >= 2) tell_host(i - 2);
    }
  }

 private:
  // Element where a share begins: rank `number` of a host sums shares number * hosts + host.
  int64_t cut(int64_t piece, int64_t share) const {
    return pieces_.begin(piece) +
           pieces_.size(piece) * share / (lane_.map().each() * lane_.map().hosts());
  }
  int64_t mine(int64_t host) const { return lane_.local() * lane_.map().hosts() + host; }
  int64_t size_of(int64_t piece, int64_t share) const {
    return cut(piece, share + 1) - cut(piece, share);
  }
  int64_t part_begin(int64_t piece, int64_t number) const {
    return cut(piece, number * lane_.map().hosts());
  }
  char* element(int64_t index) const { return memory_ + bytes_in(index, pieces_.width); }
  Tensor bytes(const Tensor& scratch, int64_t element_at, int64_t count) const {
    return scratch.narrow(0, element_at * pieces_.width, count * pieces_.width);
  }
  // Where the host's sum of a share lies among those of this rank's part.
  int64_t in_part(int64_t piece, int64_t share) const {
    return cut(piece, share) - part_begin(piece, lane_.local());
  }

  void sum_on_host(int64_t i) {
    const int64_t begin = part_begin(i, lane_.local()),
                  count = part_begin(i, lane_.local() + 1) - begin;
    const size_t before = bytes_in(begin - pieces_.begin(i), pieces_.width),
                 until = before + bytes_in(count, pieces_.width);
    const Tensor sums = lane_.scratch(i % 2),
                 others = lane_.map().hosts() > 1 ? lane_.scratch(2 + i % 2) : Tensor();
    const char* here = element(pieces_.begin(i));
    lane_.round(
        [&](char* own) {  // its own part nobody asks for
          std::memcpy(own, here, before);
          std::memcpy(own + until, here + until, pieces_.bytes(i) - until);
        },
        [&](int64_t number, const char* told) {
          put_or_add(memory_of(sums), (number == lane_.local() ? here : told) + before, count,
                     flat_.scalar_type(), /*put=*/number == 0);
        });
    const int64_t own = size_of(i, mine(lane_.host()));
    std::vector<PeerMessage> messages;
    each_other_host(lane_, [&](int64_t host) {
      messages.push_back(come_from(host, bytes(others, host * own, own)));
    });
    each_other_host(lane_, [&](int64_t host) {
      messages.push_back(
          sent_to(host, bytes(sums, in_part(i, mine(host)), size_of(i, mine(host)))));
    });
    sums_coming_[static_cast<size_t>(i % 2)] = lane_.exchange(messages);
  }

  void sum_over_hosts(int64_t i) {
    lane_.await(sums_coming_[static_cast<size_t>(i % 2)]);
    const int64_t share = mine(lane_.host()), count = size_of(i, share);
    const char* sums = memory_of(lane_.scratch(i % 2));
    for (int64_t host = 0; host < lane_.map().hosts(); ++host)
      put_or_add(element(cut(i, share)),
                 host == lane_.host()
                     ? sums + bytes_in(in_part(i, share), pieces_.width)
                     : memory_of(lane_.scratch(2 + i % 2)) + bytes_in(host * count, pieces_.width),
                 count, flat_.scalar_type(), /*put=*/host == 0);
    std::vector<PeerMessage> messages;
    each_other_host(lane_, [&](int64_t host) {
      messages.push_back(
          come_from(host, flat_.narrow(0, cut(i, mine(host)), size_of(i, mine(host)))));
    });
    each_other_host(lane_, [&](int64_t host) {
      messages.push_back(sent_to(host, flat_.narrow(0, cut(i, share), count)));
    });
    shares_coming_[static_cast<size_t>(i % 2)] = lane_.exchange(messages);
  }

  void tell_host(int64_t i) {
    lane_.await(shares_coming_[static_cast<size_t>(i % 2)]);
    auto part = [&](int64_t number) {
      return bytes_in(part_begin(i, number + 1) - part_begin(i, number), pieces_.width);
    };
    lane_.round(
        [&](char* own) {
          std::memcpy(own, element(part_begin(i, lane_.local())), part(lane_.local()));
        },
        [&](int64_t number, const char* told) {
          if (number != lane_.local())
            std::memcpy(element(part_begin(i, number)), told, part(number));
        });
  }

  HostLane& lane_;
  Tensor flat_;
  char* memory_;
  EvenPieces pieces_;
  std::array<Transport::FlightPtr, 2> sums_coming_, shares_coming_;
};

class LayeredTransport final : public Transport {
 public:
  LayeredTransport(std::shared_ptr<Transport> sockets, std::unique_ptr<HostLane> gathers,
                   std::unique_ptr<HostLane> sums)
      : sockets_(std::move(sockets)), gathers_(std::move(gathers)), sums_(std::move(sums)) {}
  bool has_native_reduce_scatter() const override { return true; }
  // What comes from other hosts begins to at once, whatever is before it in the lane.
  FlightPtr all_gather(const Tensor& shard, const Tensor& whole) override {
    if (!is_large(shard)) return sockets_->all_gather(shard, whole);
    auto gather = std::make_shared<HostGather>(*gathers_, shard, whole);
    return gathers_->start([gather](HostLane& lane) { gather->run(lane); });
  }
  FlightPtr broadcast(const Tensor& tensor, int64_t root) override {
    if (!is_large(tensor)) return sockets_->broadcast(tensor, root);
    auto broadcast = std::make_shared<HostBroadcast>(*gathers_, tensor, root);
    return gathers_->start([broadcast](HostLane& lane) { broadcast->run(lane); });
  }
  FlightPtr reduce_scatter(const Tensor& packed, const Tensor& shard) override {
    return sums_->start([packed, shard](HostLane& lane) { sum_to_shard(lane, packed, shard); });
  }
  FlightPtr all_reduce(const Tensor& tensor, ReduceOp op, bool control) override {
    if (op != ReduceOp::sum || control || !is_large(tensor))
      return sockets_->all_reduce(tensor, op, control);
    return sums_->start([tensor](HostLane& lane) { sum_everywhere(lane, tensor); });
  }
  FlightPtr pairwise_exchange(const Tensor& packed, const Tensor& received) override {
    return sockets_->pairwise_exchange(packed, received);
  }
  FlightPtr all_to_all(const Tensor& in, std::span<const int64_t> in_splits, const Tensor& out,
                       std::span<const int64_t> out_splits) override {
    return sockets_->all_to_all(in, in_splits, out, out_splits);
  }
  FlightPtr send_receive(std::span<const PeerMessage> messages) override {
    return sockets_->send_receive(messages);
  }
  FlightPtr barrier() override { return sockets_->barrier(); }

 private:
  static bool is_large(const Tensor& tensor) {
    return static_cast<int64_t>(tensor.nbytes()) >= kLeastBytes;
  }
  std::shared_ptr<Transport> sockets_;
  // Gathers are waited for before sums are, and their messages begin on another thread.
  std::unique_ptr<HostLane> gathers_, sums_;
};

}  // namespace

void sum_everywhere(HostLane& lane, const Tensor& tensor) { SumEverywhere(lane, tensor).run(); }

std::shared_ptr<Transport> layered_over(std::shared_ptr<Transport> sockets,
                                        std::shared_ptr<const Place> place, int64_t rank,
                                        const HostMap& map, const ConnectSome& connect) {
  const int64_t host = map.host[static_cast<size_t>(rank)],
                local = map.local[static_cast<size_t>(rank)];
  // Over the ranks of this host, together with those of the others over theirs.
  auto sum_on_host = [&](const Tensor& tensor) {
    Tensor rows = at::zeros({map.hosts(), tensor.numel()}, tensor.options());
    rows.select(0, host).copy_(tensor);
    sockets->all_reduce(rows, ReduceOp::sum, /*control=*/true)->wait();
    tensor.copy_(rows.select(0, host));
  };
  std::array<std::unique_ptr<SharedMemoryRing>, 2> rings;
  Tensor missing = at::zeros({1}, at::kLong);
  for (auto& ring : rings) {
    ring = make_ring(local, map.each(), HostLane::room(), sum_on_host);
    if (!ring) missing += 1;
  }
  sockets->all_reduce(missing, ReduceOp::sum, /*control=*/true)->wait();
  if (missing.item<int64_t>() > 0) return nullptr;
  std::vector<int64_t> ranks;
  for (int64_t other = 0; other < map.hosts(); ++other)
    ranks.push_back(place->ranks[static_cast<size_t>(map.place(other, local))]);
  auto lane = [&](const char* name, std::unique_ptr<SharedMemoryRing>& ring) {
    return std::make_unique<HostLane>(connect(name + std::to_string(local), ranks), std::move(ring),
                                      place, rank, map);
  };
  auto gathers = lane("/gathers/", rings[0]);
  auto sums = lane("/sums/", rings[1]);
  return std::make_shared<LayeredTransport>(std::move(sockets), std::move(gathers),
                                            std::move(sums));
}

}  // namespace meshwright::detail
