// Collectives of a group on several hosts with as many ranks each: over sockets between ranks of
// one number, over shared memory inside a host.
#include <ATen/ops/zeros.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>

#include "host_lane.h"
#include "parts.h"
#include "sdk/base/words.h"

namespace meshwright::detail {

using at::Tensor;

namespace {

// Smaller ones are over sooner without a second thread.
constexpr int64_t kLeastBytes = 4096;

struct HostGather {
  Tensor shard, whole;
  EvenPieces pieces;
  std::vector<Transport::FlightPtr> coming;  // by piece

  HostGather(HostLane& lane, const Tensor& own, const Tensor& all)
      : shard(own.view({-1})),
        whole(all.view({-1})),
        pieces(own.numel(), static_cast<int64_t>(own.element_size()),
               lane.slot() / lane.map().hosts()) {
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
        pieces(what.numel(), static_cast<int64_t>(what.element_size()), lane.slot()) {
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
  struct Lane {
    int64_t slot;
    std::unique_ptr<SharedMemoryRing> ring = nullptr;
  };
  Lane for_gathers{HostLane::slot_for(map.hosts())},
      for_sums{HostLane::slot_for(map.hosts() * map.each())};
  Tensor missing = at::zeros({1}, at::kLong);
  for (Lane* lane : {&for_gathers, &for_sums}) {
    lane->ring = make_ring(local, map.each(), HostLane::room(lane->slot), sum_on_host);
    if (!lane->ring) missing += 1;
  }
  sockets->all_reduce(missing, ReduceOp::sum, /*control=*/true)->wait();
  if (missing.item<int64_t>() > 0) return nullptr;
  std::vector<int64_t> ranks;
  for (int64_t other = 0; other < map.hosts(); ++other)
    ranks.push_back(place->ranks[static_cast<size_t>(map.place(other, local))]);
  auto open = [&](const char* name, Lane& lane) {
    return std::make_unique<HostLane>(connect(name + std::to_string(local), ranks),
                                      std::move(lane.ring), lane.slot, place, rank, map);
  };
  auto gathers = open("/gathers/", for_gathers);
  auto sums = open("/sums/", for_sums);
  return std::make_shared<LayeredTransport>(std::move(sockets), std::move(gathers),
                                            std::move(sums));
}

namespace {

// Two containers of one machine may each have shared memory of their own.
int64_t identity_of_host() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat memory{};
  if (boot.empty() || ::stat("/dev/shm", &memory) != 0) return 0;
  boot += " " + std::to_string(memory.st_dev) + " " + std::to_string(memory.st_ino);
  return static_cast<int64_t>(std::hash<std::string>()(boot) | 1U);  // 0: none
}

std::vector<int64_t> numbers_in(const char* told) {
  std::vector<int64_t> out;
  for (const std::string& number : text::split_names(told, ','))
    out.push_back(text::to_number(number).value_or(0));
  return out;
}

}  // namespace

HostMap::HostMap(const std::vector<int64_t>& identities) {
  std::vector<int64_t> met;
  for (size_t i = 0; i < identities.size(); ++i) {
    const auto known = std::find(met.begin(), met.end(), identities[i]);
    const auto index = static_cast<size_t>(known - met.begin());
    if (known == met.end()) {
      met.push_back(identities[i]);
      places.emplace_back();
    }
    host.push_back(static_cast<int64_t>(index));
    local.push_back(static_cast<int64_t>(places[index].size()));
    places[index].push_back(static_cast<int64_t>(i));
  }
}

bool HostMap::layered() const {
  return hosts() > 1 && each() > 1 && hosts() * each() <= kMostRanks &&
         std::all_of(places.begin(), places.end(),
                     [&](const auto& p) { return static_cast<int64_t>(p.size()) == each(); });
}

HostMap find_hosts(Transport& transport, const Place& place, int64_t rank) {
  const auto n = static_cast<int64_t>(place.ranks.size());
  std::vector<int64_t> identities(place.ranks.size(), 0);
  if (const char* told = std::getenv("MESHWRIGHT_HOSTS")) {
    const std::vector<int64_t> all = numbers_in(told);
    for (size_t i = 0; i < identities.size() && !all.empty(); ++i)
      identities[i] = all[static_cast<size_t>(place.ranks[i]) % all.size()];
    return HostMap(identities);
  }
  if (n < 4) return HostMap(identities);
  at::Tensor all = at::zeros({n}, at::kLong);
  auto* at = all.mutable_data_ptr<int64_t>();
  // A rank that wants no shared memory asks with the others, and says so.
  at[rank] = wants_shared_memory() ? identity_of_host() : 0;
  transport.all_reduce(all, ReduceOp::sum, /*control=*/true)->wait();
  std::copy(at, at + n, identities.begin());
  if (std::find(identities.begin(), identities.end(), 0) != identities.end())
    identities.assign(identities.size(), 0);
  return HostMap(identities);
}

}  // namespace meshwright::detail
