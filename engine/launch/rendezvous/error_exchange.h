// Where a rank that ends before the work is done says why, so that all others end with the same
// words and the same exit status.
//
// The exchange is a few keys of the store that the ranks met in. Nobody looks at it while training
// goes well: a rank that fails closes its connections, and the others, whose collectives break,
// look here before they call the broken connection the cause.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <optional>

#include "engine/launch/ranks.h"
#include "meshwright/error.h"

namespace c10d {
class Store;
}

namespace meshwright::rendezvous {

class ErrorExchange {
 public:
  // `timeout`: of the job's collectives; nobody waits here for longer.
  ErrorExchange(const launch::RankEnvironment& ranks, const c10::intrusive_ptr<c10d::Store>& store,
                std::chrono::milliseconds timeout);

  // This rank ends with that error; its connections are closed already. The first error of the job
  // is kept, and, until there is one that explains it, the first that says that another rank is
  // gone: whoever waits for that one in turn then names the rank that was lost, and at once. The
  // rank that keeps the store stays until the others have read, or for half a minute.
  void post(const Error& error) noexcept;
  // What another rank has posted, with a note that says which; waits so long for it. A store that
  // is gone has nothing to say.
  std::optional<Error> read(std::chrono::milliseconds patience) noexcept;
  // The same over a connection of its own, for a moment in which another thread waits in the store.
  std::optional<Error> read_beside() noexcept;
  // The store did not answer the last time: who keeps it hangs, or the network to it is gone.
  bool silent() const { return silent_; }
  // Collective, after the last collective: returns once rank 0 has done what it does alone. Throws
  // what it posted instead, or Error(collective_failed) when it is gone.
  void finish();

 private:
  bool keeper() const { return ranks_.rank == 0 && !ranks_.meets_at_agent(); }
  // What the store is given to answer in.
  std::chrono::milliseconds answers() const;
  launch::RankEnvironment ranks_;
  std::atomic<bool> silent_ = false;
  c10::intrusive_ptr<c10d::Store> store_, beside_;
  std::chrono::steady_clock::time_point beside_again_{};  // not before
  std::chrono::milliseconds timeout_;
};

}  // namespace meshwright::rendezvous
