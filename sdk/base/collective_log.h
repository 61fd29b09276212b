// The last collectives of a rank and its messages to single ranks, always written down and read
// when a run ends in a way that makes one ask who waited for whom. The ring is there from the
// start: nothing is allocated for a collective, and only its begin takes a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/export.h"

namespace meshwright {

class World;

namespace detail {

// What became of one: it starts, and is under way once the transport has it; the host waits for it,
// or, on a device, has put its stream behind it.
enum class CollectiveState : uint8_t { starting, under_way, waiting, queued, completed, failed };
MESHWRIGHT_API const char* name_of(CollectiveState state);

// A message of a rank to or from one other.
struct LoggedMessage {
  int64_t rank = 0;  // the other one, of the job
  bool sent = false;
  int64_t number = 0;  // from 1, among those of the two ranks in this group and direction
  int64_t bytes = 0;
};

// Times are microseconds since 1970, 0: it has not come to that.
struct LoggedCollective {
  int64_t number = 0;  // from 1, in its group; 0: messages, which have numbers of their own
  std::string op;
  size_t group = 0;
  int64_t bytes = 0, began = 0, waited_from = 0, ended = 0;
  CollectiveState state = CollectiveState::starting;
  std::string purpose;  // empty: nobody said
  std::vector<LoggedMessage> messages;
};

struct LoggedGroup {
  std::string axis;
  std::vector<int64_t> ranks;
  int64_t entered = 0;                  // collectives
  std::vector<int64_t> sent, received;  // messages, by place in the group
};

struct CollectiveRecord {
  int64_t taken = 0;
  std::vector<LoggedGroup> groups;
  std::vector<LoggedCollective> collectives;  // the last ones, oldest first
};

class MESHWRIGHT_API CollectiveLog {
 public:
  static constexpr size_t kKept = 1000, kMessages = 4, kPurpose = 96;
  CollectiveLog();
  size_t add_group(const std::string& axis, const std::vector<int64_t>& ranks);
  // `op` is a literal. `moment`: where the trace has the begin. `fill_purpose(out, room)` writes
  // what it is for and gives the length; called where it may be kept. Gives the entry's ticket, 0
  // when nothing is written down any more.
  using FillPurpose = size_t (*)(char* out, size_t room);
  int64_t begin(size_t group, const char* op, int64_t bytes, int64_t moment, bool collective,
                FillPurpose fill_purpose);
  // What the entry's exchange has for the rank at `place` of its group.
  void message(int64_t ticket, size_t group, int64_t place, bool sent, int64_t bytes);
  // Nothing where the entry is gone, for the ring has gone round.
  void mark(int64_t ticket, CollectiveState state);
  int64_t moment_of(int64_t ticket) const;
  // How many have begun.
  int64_t begun() const { return last_.load(std::memory_order_relaxed); }
  // From now on nothing changes. For signal handlers too.
  void freeze() { frozen_.store(true, std::memory_order_relaxed); }
  CollectiveRecord read() const;

 private:
  struct Entry {
    std::atomic<int64_t> ticket{0};
    std::atomic<int64_t> waited_from{0}, ended{0}, moment{0};
    std::atomic<CollectiveState> state{CollectiveState::starting};
    // From here on the lock's.
    uint8_t purpose_length = 0, message_count = 0;
    const char* op = "";
    size_t group = 0;
    int64_t number = 0, bytes = 0, began = 0;
    std::array<LoggedMessage, kMessages> messages;
    std::array<char, kPurpose> purpose;
  };
  Entry& at(int64_t ticket) { return ring_[static_cast<size_t>(ticket) % kKept]; }
  const Entry& at(int64_t ticket) const { return ring_[static_cast<size_t>(ticket) % kKept]; }
  mutable std::mutex mutex_;
  std::atomic<int64_t> last_{0};
  std::atomic<bool> frozen_{false};
  std::vector<Entry> ring_;
  std::vector<LoggedGroup> groups_;
};

// Of all groups of a world.
MESHWRIGHT_API CollectiveLog& collective_log(World& world);

}  // namespace detail
}  // namespace meshwright
