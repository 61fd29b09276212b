// Which ranks of a group are on one host, a transport that makes use of it, and the way of its
// collectives: a thread that runs one after the other, shared memory between the ranks of this
// host, and sockets to the ranks of this one's number on the others.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "meshwright/export.h"
#include "sdk/base/transport.h"
#include "shared_memory_ring.h"
#include "watchdog.h"

namespace meshwright::detail {

// The hosts of a group, in the order of their first ranks; those of a host in the order of the
// group.
struct MESHWRIGHT_API HostMap {
  std::vector<int64_t> host, local;  // by place in the group: its host, its number on that host
  std::vector<std::vector<int64_t>> places;                  // by host and number on it
  explicit HostMap(const std::vector<int64_t>& identities);  // by place; alike: one host
  int64_t hosts() const { return static_cast<int64_t>(places.size()); }
  int64_t each() const { return static_cast<int64_t>(places[0].size()); }  // ranks of the first
  int64_t place(int64_t host_index, int64_t number) const {
    return places[static_cast<size_t>(host_index)][static_cast<size_t>(number)];
  }
  // Several hosts, all with as many ranks of the group, two at least, and kMostRanks in all at
  // most: the pieces that are shared out among them have room in shared memory.
  static constexpr int64_t kMostRanks = 64;
  bool layered() const;
};

// Collective over the group, which goes by `transport`. Hosts are told apart by their kernel and
// the file system that shared memory lies in. MESHWRIGHT_HOSTS ("0,0,1,1": a number for each rank
// of the job, from the start again behind its end) says in their place who is to be on one host, so
// that several may be tried on one. Groups of less than four ranks do not ask, and neither do those
// without shared memory: one host.
HostMap find_hosts(Transport& transport, const Place& place, int64_t rank);

// Makes the sockets between some ranks of the job; collective over them. The name is one beside
// that of the group.
using ConnectSome = std::function<std::shared_ptr<Transport>(const std::string& name,
                                                             const std::vector<int64_t>& ranks)>;

// Collective over the group. The transport of a group with map.layered(): what is large goes
// through shared memory inside a host and between hosts only among ranks of one number, so that
// each byte enters a host once; all else by `sockets`. Sums are added up on each host, in the order
// of its ranks, and then in that of the hosts, in the tensors' dtype. Collectives go on without the
// thread that started them. nullptr: there is no room in shared memory, on some host.
std::shared_ptr<Transport> layered_over(std::shared_ptr<Transport> sockets,
                                        std::shared_ptr<const Place> place, int64_t rank,
                                        const HostMap& map, const ConnectSome& connect);

class HostLane {
 public:
  using Job = std::function<void(HostLane&)>;
  // Bytes of a rank in one round that is shared out in so many parts: half a MiB, and more where a
  // part would be less than 32 KiB, for which a message is not worth its while.
  static constexpr int64_t slot_for(int64_t parts) {
    return std::max(int64_t{1} << 19, parts << 15);
  }
  static SharedMemoryRing::Sizes room(int64_t slot);  // of the ring that such a lane takes

  // `across`: its places are the numbers of the hosts; none for one host. `ring`: its places are
  // those of the ranks on this host, its slots of `slot` bytes; with `place` none where no job has
  // a round.
  HostLane(std::shared_ptr<Transport> across, std::unique_ptr<SharedMemoryRing> ring, int64_t slot,
           std::shared_ptr<const Place> place, int64_t rank, const HostMap& map);
  // What is under way is given up.
  ~HostLane();
  HostLane(const HostLane&) = delete;
  HostLane& operator=(const HostLane&) = delete;

  const HostMap& map() const { return map_; }
  int64_t slot() const { return slot_; }
  int64_t host() const { return host_; }    // this rank's
  int64_t local() const { return local_; }  // its number on it
  // Runs the job on the lane's thread, behind those before it; wait() throws what it threw. Jobs of
  // all ranks of the group must be the same, in one order. `awaited`: the place in the group of the
  // only rank that it waits for.
  Transport::FlightPtr start(Job job, int64_t awaited = -1);
  // Messages to and from the ranks of this one's number, by host. By the lane's thread alone, or
  // never by it. Empty tensors are left out; nullptr: there was nothing else.
  Transport::FlightPtr exchange(const std::vector<PeerMessage>& messages);

  // For jobs. Waits for an exchange; none: does nothing.
  void await(Transport::FlightPtr& flight);
  // For jobs; all ranks of the host come here alike. `fill(own)` writes what this rank has to tell,
  // slot() bytes at most, and `take(number, from)` reads what each has written, in the order of
  // their numbers, this rank's among them.
  template <class Fill, class Take>
  void round(Fill&& fill, Take&& take);
  // For jobs: memory of at least slot() bytes, [slot() + more] of uint8; `index` 0 to 3.
  at::Tensor scratch(int64_t index);

 private:
  struct GivenUp : std::exception {};
  template <class F>
  auto patiently(F&& wait);
  void run();

  std::shared_ptr<Transport> across_;
  std::unique_ptr<SharedMemoryRing> ring_;
  const int64_t slot_;
  std::shared_ptr<const Place> place_;
  HostMap map_;
  int64_t host_, local_;
  std::vector<at::Tensor> scratch_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::packaged_task<void()>> tasks_;
  Flight* awaited_ = nullptr;  // what the thread waits for
  std::atomic<bool> given_up_ = false;
  std::exception_ptr failure_;  // of a job: those behind it fail alike
  std::thread thread_;
};

// For jobs of the group's lane that sums. The tensor becomes the sum over the group; the shard that
// of what the ranks packed for this one.
void sum_everywhere(HostLane& lane, const at::Tensor& tensor);
void sum_to_shard(HostLane& lane, const at::Tensor& packed, const at::Tensor& shard);
// For jobs of two ranks, each a host of its own. The tensor, which is contiguous, becomes the sum
// of both: each sends the other all of it, so that no message waits for a sum of the other's.
void sum_with_other(HostLane& lane, const at::Tensor& tensor);

// Short waits, so that the lane can be given up between them.
template <class F>
auto HostLane::patiently(F&& wait) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + place_->timeout;
  const auto slice = std::min(place_->timeout, std::chrono::milliseconds(200));
  for (;;) {
    if (given_up_) throw GivenUp();
    try {
      return wait(slice);
    } catch (const SharedMemoryRing::Late& late) {
      if (Clock::now() >= end) throw PeerLate{map_.place(host_, late.peer)};
    } catch (const SharedMemoryRing::Gone& gone) {
      throw PeerGone{map_.place(host_, gone.peer)};
    }
  }
}

template <class Fill, class Take>
void HostLane::round(Fill&& fill, Take&& take) {
  constexpr auto kChannel = SharedMemoryRing::reduce;  // where each rank's slots lie by themselves
  int64_t sequence = 0;
  auto* own = static_cast<char*>(patiently([&](std::chrono::milliseconds slice) {
    return ring_->stage(kChannel, slot_, sequence, slice);
  }));
  fill(own);
  ring_->publish(kChannel, sequence);
  for (int64_t number = 0; number < map_.each(); ++number) {
    if (number == local_) {
      take(number, static_cast<const char*>(own));
      continue;
    }
    const void* from = patiently([&](std::chrono::milliseconds slice) {
      return ring_->read(kChannel, number, slot_, sequence, slice);
    });
    take(number, static_cast<const char*>(from));
    ring_->give_back(kChannel, number, sequence);
  }
}

// Tensors in pieces, as collectives over hosts move them.

inline size_t bytes_in(int64_t count, int64_t width) { return static_cast<size_t>(count * width); }

inline char* memory_of(const at::Tensor& tensor) {
  return static_cast<char*>(tensor.mutable_data_ptr());
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

inline PeerMessage sent_to(int64_t host, at::Tensor tensor) {
  return {PeerMessage::Way::send, host, std::move(tensor)};
}
inline PeerMessage come_from(int64_t host, at::Tensor tensor) {
  return {PeerMessage::Way::receive, host, std::move(tensor)};
}

// Calls f(host) for all hosts but this rank's, each rank beginning behind its own.
template <class F>
void each_other_host(const HostLane& lane, F&& f) {
  const int64_t hosts = lane.map().hosts();
  for (int64_t k = 1; k < hosts; ++k) f((lane.host() + k) % hosts);
}

// What a rank wrote in a round about hosts: one part of `part` bytes for each.
inline const char* slot_part(const char* slot, int64_t host, size_t part) {
  return slot + static_cast<size_t>(host) * part;
}

}  // namespace meshwright::detail
