#include "engine/launch/rendezvous/error_exchange.h"

#include <algorithm>
#include <functional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "engine/launch/rendezvous/deadlines.h"
#include "engine/launch/rendezvous/notices.h"
#include "engine/launch/rendezvous/rendezvous.h"
#include "sdk/base/files/json_codec.h"
#include "sdk/base/host_facts.h"

namespace meshwright::rendezvous {

std::string encode_error(const Error& error) { return base::error_text(error); }

Error decode_error(const std::string& text) {
  return base::error_in(text).value_or(Error(
      ErrorCode::rank_failed,
      "another rank refused the job in words that this one cannot read: " + text.substr(0, 200)));
}

std::string name_here(int64_t rank) {
  return "rank " + std::to_string(rank) + " (" + host_name() + ")";
}

namespace {

using Clock = std::chrono::steady_clock;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

// Each look at a store that does not answer leaves a thread behind.
constexpr Milliseconds kSeldom = std::chrono::seconds(30);

// Says that another rank is gone or silent, which that rank, or whoever ended it, explains better.
bool follows(ErrorCode code) {
  return code == ErrorCode::rendezvous_failed || code == ErrorCode::ranks_disagree ||
         code == ErrorCode::rank_failed || code == ErrorCode::collective_timeout;
}

// What the first rank that failed said. `lost`: else what the first one said that lost another.
std::optional<Error> look(c10d::Store& store, int64_t rank, bool lost = true) {
  const char* key = store.check({"error"})          ? "error"
                    : lost && store.check({"lost"}) ? "lost"
                                                    : nullptr;
  if (key == nullptr) return std::nullopt;
  std::string text = text_of(store.get(key));
  size_t line = text.find('\n');
  Error error = decode_error(text.substr(line + 1));
  std::string who = text.substr(0, line);
  if (who != name_here(rank)) error.note("on " + who);
  return error;
}

void wait_until(Clock::time_point end, const std::function<bool()>& done) {
  for (Milliseconds pause(2); !done() && Clock::now() < end;
       pause = std::min(2 * pause, Milliseconds(200)))
    std::this_thread::sleep_for(pause);
}

}  // namespace

ErrorExchange::ErrorExchange(const launch::RankEnvironment& ranks, const StorePtr& store,
                             Milliseconds timeout)
    : ranks_(ranks),
      store_(c10::make_intrusive<c10d::PrefixStore>("exchange", store)),
      timeout_(timeout) {}

Milliseconds ErrorExchange::answers() const { return silent_ ? kStoreOnceMore : kStoreAnswers; }

void ErrorExchange::post(const Error& error) noexcept {
  try {
    const bool lost = error.code() == ErrorCode::collective_failed;
    std::string text =
        follows(error.code()) ? "" : name_here(ranks_.rank) + "\n" + encode_error(error);
    auto end = Clock::now() + std::min(timeout_, kStay);
    const Milliseconds limit =
        post_limit({.silent = silent_, .keeper = keeper(), .says = !text.empty()}, timeout_);
    bounded(limit, [store = store_, text, lost, end, stays = keeper(), world = ranks_.world_size] {
      if (!text.empty() && store->add(lost ? "losses" : "errors", 1) == 1)
        store->set(lost ? "lost" : "error", bytes_of(text));
      store->add("ended", 1);
      if (!stays) return;
      if (store->check({"error"}))
        wait_until(end, [&] { return store->add("ended", 0) >= world; });
      else if (lost)  // the one that is gone says nothing
        wait_until(std::min(end, Clock::now() + kStoreAnswers),
                   [&] { return store->add("ended", 0) >= world - 1; });
    });
  } catch (...) {  // who keeps the store has ended, and the others see that
  }
}

std::optional<Error> ErrorExchange::read(Milliseconds patience) noexcept {
  try {
    std::optional<Error> out = bounded(
        patience + answers(), [store = store_, rank = ranks_.rank, end = Clock::now() + patience] {
          std::optional<Error> found;
          wait_until(end, [&] { return (found = look(*store, rank)).has_value(); });
          return found;
        });
    silent_ = false;
    return out;
  } catch (const NoAnswer&) {
    silent_ = true;
    return std::nullopt;
  } catch (...) {
    return std::nullopt;
  }
}

std::optional<Error> ErrorExchange::read_beside() noexcept {
  if (Clock::now() < beside_again_) return std::nullopt;
  try {
    if (!beside_) beside_ = bounded(answers(), [store = store_] { return store->clone(); });
    std::optional<Error> out =
        bounded(answers(), [store = beside_, rank = ranks_.rank] { return look(*store, rank); });
    silent_ = false;
    return out;
  } catch (const NoAnswer&) {
    silent_ = true;
    beside_.reset();  // a call that never came back holds this one
    beside_again_ = Clock::now() + kSeldom;
    return std::nullopt;
  } catch (...) {
    return std::nullopt;
  }
}

void ErrorExchange::finish() {
  auto lost = [&](const std::string& what) {
    return Error(ErrorCode::collective_failed, "rank " + std::to_string(ranks_.rank) +
                                                   " waited for rank 0 to end the run: " + what)
        .help("look at the log of rank 0");
  };
  try {
    if (ranks_.rank == 0) {
      auto end = Clock::now() + std::min(timeout_, kStay);
      bounded(std::min(timeout_, kStay) + kStoreAnswers,
              [store = store_, end, stays = keeper(), world = ranks_.world_size] {
                store->set("over", bytes_of("1"));
                if (stays) wait_until(end, [&] { return store->add("ended", 0) >= world - 1; });
              });
      return;
    }
    // Rank 0 may export for as long as that takes; only silence has a limit.
    for (Milliseconds pause(2);; pause = std::min(2 * pause, Milliseconds(500))) {
      auto [error, over] = bounded(timeout_ + kStoreAnswers, [store = store_, rank = ranks_.rank] {
        std::optional<Error> found = look(*store, rank, /*lost=*/false);
        return std::pair(std::move(found), store->check({"over"}));
      });
      if (error) throw *error;
      if (over) break;
      std::this_thread::sleep_for(pause);
    }
    bounded(kStoreAnswers, [store = store_] { store->add("ended", 1); });
  } catch (const Error&) {
    throw;
  } catch (const NoAnswer&) {
    silent_ = true;
    if (ranks_.rank != 0) throw lost("it hangs or is stopped");
  } catch (const std::exception&) {
    if (ranks_.rank != 0) throw lost("it ended before that");
  }
}

void Ending::tell(const Error& error) noexcept {
  try {
    if (stage_ == Stage::alone)
      if (auto ranks = launch::detect_ranks(launch::process_environment())) refuse(*ranks, error);
    if (exchange_) exchange_->post(error);
  } catch (...) {  // the launcher's variables make no sense: nobody can be found by them
  }
}

}  // namespace meshwright::rendezvous
