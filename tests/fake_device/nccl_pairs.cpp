// Sends and receives of one group: every pair of ranks has a box each way, and a call ends when all
// of its messages were taken, as kernels of NCCL do. Others of the communicator take no part.
#include <chrono>
#include <cstring>
#include <thread>

#include "device.h"
#include "nccl_shared.h"

namespace fake_device {

namespace {

using Clock = std::chrono::steady_clock;

// A piece of a message, before its bytes.
struct Box {
  std::atomic<uint32_t> full;
  uint64_t bytes, total;  // of the piece and of its message
};
constexpr size_t kBoxHead = 64;
static_assert(sizeof(Box) <= kBoxHead);

class Exchange {
 public:
  explicit Exchange(const Call& call)
      : comm_(*call.comm), all_(call.transfers), done_(all_.size(), 0) {
    for (const Transfer& transfer : all_) ended_.push_back(transfer.bytes == 0);
  }
  ~Exchange() { comm_.tell_pending({}); }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  bool run() {
    auto since = Clock::now();
    for (int turns = 0;; ++turns) {
      const bool moved = move();
      if (wrong_) return false;
      const Pending pending = pending_ones();
      comm_.tell_pending(pending);
      if (pending == Pending()) return true;
      if (moved) {
        turns = 0;
        since = Clock::now();
      } else if (!go_on(turns, since)) {
        return false;
      }
    }
  }

 private:
  size_t room() const {
    return (kSlotBytes / static_cast<size_t>(comm_.size) & ~size_t{63}) - kBoxHead;
  }
  char* box(int from, int to) const {
    return comm_.boxes(from) + static_cast<size_t>(to) * (room() + kBoxHead);
  }

  Pending pending_ones() const {
    Pending out;
    for (size_t i = 0; i < all_.size(); ++i)
      if (!ended_[i]) (all_[i].send ? out.sends : out.receives) |= uint64_t{1} << all_[i].peer;
    return out;
  }

  // Messages of one pair and way go one after the other.
  bool move() {
    bool moved = false;
    Pending busy;
    for (size_t i = 0; i < all_.size() && !wrong_; ++i) {
      uint64_t& way = all_[i].send ? busy.sends : busy.receives;
      const uint64_t peer = uint64_t{1} << all_[i].peer;
      if (ended_[i] || (way & peer) != 0) continue;
      moved = (all_[i].send ? send(i) : receive(i)) || moved;
      if (!ended_[i]) way |= peer;
    }
    return moved;
  }

  bool send(size_t i) {
    char* place = box(comm_.rank, all_[i].peer);
    auto* head = reinterpret_cast<Box*>(place);
    if (head->full.load(std::memory_order_acquire) != 0) return false;
    if (done_[i] == all_[i].bytes) {
      ended_[i] = true;  // the last piece was taken
      return true;
    }
    head->bytes = std::min(all_[i].bytes - done_[i], room());
    head->total = all_[i].bytes;
    memcpy(place + kBoxHead, static_cast<const char*>(fake_device_view(all_[i].data)) + done_[i],
           head->bytes);
    done_[i] += head->bytes;
    head->full.store(1, std::memory_order_release);
    return true;
  }

  bool receive(size_t i) {
    char* place = box(all_[i].peer, comm_.rank);
    auto* head = reinterpret_cast<Box*>(place);
    if (head->full.load(std::memory_order_acquire) == 0) return false;
    if (head->total != all_[i].bytes) {
      fake_device_note(
          "fake device: nccl WRONG: rank %d expects %zu bytes of rank %d and gets %zu (a real one "
          "would hang)\n",
          comm_.rank, all_[i].bytes, all_[i].peer, static_cast<size_t>(head->total));
      wrong_ = true;
      return false;
    }
    memcpy(static_cast<char*>(fake_device_view(all_[i].data)) + done_[i], place + kBoxHead,
           head->bytes);
    done_[i] += head->bytes;
    head->full.store(0, std::memory_order_release);
    ended_[i] = done_[i] == all_[i].bytes;
    return true;
  }

  // Whether there is something to wait for.
  bool go_on(int turns, Clock::time_point since) {
    if (comm_.aborted) return false;
    if (turns % 1000 == 999) {
      if (comm_.is_alone()) comm_.lost = true;
      // Who has just been served may not have said so yet.
      if (Clock::now() - since > std::chrono::seconds(2) && comm_.waits_in_a_circle()) {
        fake_device_note(
            "fake device: nccl WRONG: rank %d and others send and receive in orders that wait for "
            "each other (a real one would hang)\n",
            comm_.rank);
        comm_.lost = true;
      }
      if (comm_.lost) return false;
    }
    if (turns < 100)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(turns < 1000 ? 20 : 200));
    return true;
  }

  const ncclComm& comm_;
  const std::vector<Transfer>& all_;
  std::vector<size_t> done_;
  std::vector<bool> ended_;
  bool wrong_ = false;
};

}  // namespace

bool send_and_receive(const Call& call) { return Exchange(call).run(); }

}  // namespace fake_device
