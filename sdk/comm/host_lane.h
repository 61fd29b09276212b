// A way for collectives of a group on several hosts: a thread that runs one after the other, shared
// memory between the ranks of this host, and sockets to the ranks of this one's number on the
// others.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "hosts.h"
#include "meshwright/parallel/transport.h"
#include "shared_memory_ring.h"

namespace meshwright::detail {

class HostLane {
 public:
  using Job = std::function<void(HostLane&)>;
  static constexpr int64_t kSlot = 1 << 19;  // bytes of a rank in one round
  static SharedMemoryRing::Sizes room();     // of the ring that a lane takes

  // `across`: its places are the numbers of the hosts; none for one host. `ring`: its places are
  // those of the ranks on this host.
  HostLane(std::shared_ptr<Transport> across, std::unique_ptr<SharedMemoryRing> ring,
           std::shared_ptr<const Place> place, int64_t rank, const HostMap& map);
  // What is under way is given up.
  ~HostLane();
  HostLane(const HostLane&) = delete;
  HostLane& operator=(const HostLane&) = delete;

  const HostMap& map() const { return map_; }
  int64_t host() const { return host_; }    // this rank's
  int64_t local() const { return local_; }  // its number on it
  // Runs the job on the lane's thread, behind those before it; wait() throws what it threw. Jobs of
  // all ranks of the group must be the same, in one order.
  Transport::FlightPtr start(Job job);
  // Messages to and from the ranks of this one's number, by host. By the lane's thread alone, or
  // never by it. Empty tensors are left out; nullptr: there was nothing else.
  Transport::FlightPtr exchange(const std::vector<PeerMessage>& messages);

  // For jobs. Waits for an exchange; none: does nothing.
  void await(Transport::FlightPtr& flight);
  // For jobs; all ranks of the host come here alike. `fill(own)` writes what this rank has to tell,
  // kSlot bytes at most, and `take(number, from)` reads what each has written, in the order of
  // their numbers, this rank's among them.
  template <class Fill, class Take>
  void round(Fill&& fill, Take&& take);
  // For jobs: memory of at least kSlot bytes, [kSlot + more] of uint8; `index` 0 to 3.
  at::Tensor scratch(int64_t index);

 private:
  struct GivenUp : std::exception {};
  template <class F>
  auto patiently(F&& wait);
  void run();

  std::shared_ptr<Transport> across_;
  std::unique_ptr<SharedMemoryRing> ring_;
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
    return ring_->stage(kChannel, kSlot, sequence, slice);
  }));
  fill(own);
  ring_->publish(kChannel, sequence);
  for (int64_t number = 0; number < map_.each(); ++number) {
    if (number == local_) {
      take(number, static_cast<const char*>(own));
      continue;
    }
    const void* from = patiently([&](std::chrono::milliseconds slice) {
      return ring_->read(kChannel, number, kSlot, sequence, slice);
    });
    take(number, static_cast<const char*>(from));
    ring_->give_back(kChannel, number, sequence);
  }
}

}  // namespace meshwright::detail
