// Whether the other ranks live: each has a connection to rank 0, which the kernel closes when a
// process ends in whatever way. On devices nothing else tells of it before the timeout, for NCCL
// has no connection that breaks where ranks share memory.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/launch/ranks.h"
#include "engine/launch/rendezvous/deadlines.h"

namespace c10d {
class Store;
}

namespace meshwright::rendezvous {

class Heartbeat {
 public:
  // Collective. A rank that cannot connect in time is not watched, watches nobody, and says so in
  // the store. Rank 0 listens where its store does (connectivity.h): one port at each address
  // of MASTER_ADDR, for a host may have only the second one's family.
  Heartbeat(const launch::RankEnvironment& ranks, c10d::Store& store, const HeartbeatTimes& times,
            const std::string& interface = {});
  // Says good-bye, unless an exception ends this rank.
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;
  // A rank that has ended without a good-bye, as rank 0 has told. Takes no time. Thread-safe.
  std::optional<int64_t> ended();
  // Rank 0: which ranks it does not watch, for the user; empty: it watches all. Waits until each
  // has connected or could not, until `end` at most.
  std::string unwatched(c10d::Store& store, HeartbeatTimes::Time end);
  // Rank 0, once all ranks have met elsewhere, so that none is left that still tries: those that
  // have said since unwatched() that they could not connect, in the same words; empty: none. Waits
  // for nobody.
  std::string unwatched_since(c10d::Store& store);

 private:
  struct Line {
    int fd = -1;
    int64_t rank = -1;  // at its other end, which has said so; -1: not yet
  };
  int reach(const launch::RankEnvironment& ranks, c10d::Store& store, const HeartbeatTimes& times);
  std::string name_unwatched(c10d::Store& store, size_t from);
  void accept_lines(int listener);
  void listen_to(Line& line);
  void lose(int64_t rank);
  const int64_t rank_, world_;
  std::mutex mutex_;
  std::vector<int> listeners_;  // of rank 0: one port
  int64_t token_ = 0;           // which only ranks of this job know
  std::vector<Line> lines_;
  size_t most_lines_ = 0;
  std::optional<int64_t> ended_;
  std::string trouble_;            // why rank 0 watches nobody
  std::atomic<size_t> named_ = 0;  // of what the unwatched have written: rank 0 has read so much
};

}  // namespace meshwright::rendezvous
