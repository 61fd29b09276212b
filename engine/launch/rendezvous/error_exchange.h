// An error as a text that another process reads again: code, message, key, place in the file, helps
// and notes.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "engine/launch/ranks.h"
#include "meshwright/error.h"

namespace meshwright::rendezvous {

std::string encode_error(const Error& error);
// A text that is not one of encode_error(), as another version of the program may send it, becomes
// the message of Error(rank_failed).
Error decode_error(const std::string& text);

// "rank 1 (node7)", for a message that other ranks read.
std::string name_here(int64_t rank);

}  // namespace meshwright::rendezvous

// Where a rank that ends before the work is done says why, so that all others end with the same
// words and the same exit status.
//
// The exchange is a few keys of the store that the ranks met in. Nobody looks at it while training
// goes well: a rank that fails closes its connections, and the others, whose collectives break,
// look here before they call the broken connection the cause.

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

// How a process that is one of several ranks ends: together with the others, whatever ends it and
// whenever.
//
//   Ending ending;
//   try { ... ending.meeting(); ... ending.joined(exchange); ...; ending.finish(); }
//   catch (const Error& error) { print(error); ending.tell(error); return
//   exit_status(error.code()); }

class Ending {
 public:
  // From now on the ranks find out together what is wrong.
  void meeting() { stage_ = Stage::meeting; }
  // The ranks have met. Without an exchange (a single rank, or ranks whose parent ends them all)
  // there is nobody to tell.
  void joined(std::shared_ptr<ErrorExchange> exchange) {
    stage_ = Stage::joined;
    exchange_ = std::move(exchange);
  }
  // This rank has ended with that error, has said so and has closed its connections: tells the
  // others, before they have met too.
  void tell(const Error& error) noexcept;
  // Collective, last: see ErrorExchange::finish().
  void finish() {
    if (exchange_) exchange_->finish();
  }

 private:
  enum class Stage : uint8_t { alone, meeting, joined };
  Stage stage_ = Stage::alone;
  std::shared_ptr<ErrorExchange> exchange_;
};

}  // namespace meshwright::rendezvous
