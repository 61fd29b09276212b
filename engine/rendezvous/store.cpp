// connect_store(): one store for all ranks, and nobody goes on before everybody is there.
#include <algorithm>
#include <charconv>
#include <optional>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "engine/launch/limits.h"
#include "engine/rendezvous/bounded.h"
#include "engine/rendezvous/error_text.h"
#include "engine/rendezvous/notices.h"
#include "engine/rendezvous/open_store.h"
#include "engine/rendezvous/rendezvous.h"
#include "engine/rendezvous/store_server.h"
#include "meshwright/error.h"

namespace meshwright::rendezvous {

namespace {

using Clock = std::chrono::steady_clock;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

// How long ranks that refuse the job wait for those that do not know it yet.
constexpr Milliseconds kRefusalStays = std::chrono::seconds(15);

// What rank 0 found out about who is there: empty, or the words of an error for all ranks, or what
// one of them refuses.
struct Roll {
  ErrorCode code = ErrorCode::rendezvous_failed;
  std::string words;
  std::string refusal = {};  // encode_error()
};

constexpr char kRefusal = '!';

std::string encode(const Roll& roll) {
  if (!roll.refusal.empty()) return kRefusal + roll.refusal;
  return roll.words.empty() ? "" : std::to_string(static_cast<int>(roll.code)) + " " + roll.words;
}
Roll decode_roll(const std::string& text) {
  if (text.starts_with(kRefusal)) return {ErrorCode::rank_failed, "", text.substr(1)};
  size_t space = text.find(' ');
  if (space == std::string::npos) return {};
  int code = 0;
  auto [end, failed] = std::from_chars(text.data(), text.data() + space, code);
  for (const ErrorInfo& info : error_catalog())
    if (failed == std::errc() && end == text.data() + space && static_cast<int>(info.code) == code)
      return {info.code, text.substr(space + 1)};
  return {ErrorCode::rendezvous_failed, text.substr(0, 200)};
}

Roll twice(int64_t rank) { return {ErrorCode::bad_rank_environment, words_of_twice(rank)}; }

// The rank of which two processes have come, as the second one says; what no rank says is nothing.
std::optional<int64_t> said_twice(c10d::Store& store, int64_t world) {
  if (!store.check({"twice"})) return std::nullopt;
  const std::string text = text_of(store.get("twice"));
  int64_t rank = -1;
  auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), rank);
  const bool whole = failed == std::errc() && end == text.data() + text.size();
  return whole && rank >= 0 && rank < world ? std::optional<int64_t>(rank) : std::nullopt;
}

// Rank 0: waits for everybody.
Roll call_roll(c10d::Store& store, const StoreServer* server, int64_t world,
               const std::string& where, Milliseconds timeout, Clock::time_point end) {
  std::vector<int64_t> missing;
  for (int64_t r = 0; r < world; ++r) {
    std::string key = std::to_string(r);
    while (!store.check({key}) && Clock::now() < end && !said_twice(store, world) &&
           !store.check({"refused"}))
      std::this_thread::sleep_for(Milliseconds(20));
    if (store.check({"refused"}))
      return {ErrorCode::rank_failed, "", text_of(store.get("refused"))};
    if (std::optional<int64_t> rank = said_twice(store, world)) return twice(*rank);
    if (!store.check({key})) {
      missing.push_back(r);
      continue;
    }
    std::string theirs = text_of(store.get(key));
    if (theirs != std::to_string(world))
      return {ErrorCode::ranks_disagree, "rank " + key + " has WORLD_SIZE " + theirs +
                                             ", rank 0 has " + std::to_string(world)};
  }
  if (missing.empty()) return {};
  std::string words = "all timed out after " + seconds(timeout) + " at " + where +
                      ": there is no rank " + some_of(missing) + " of " + std::to_string(world);
  if (server != nullptr)
    for (const std::string& visitor : server->refused()) words += "; refused: " + visitor;
  return {ErrorCode::rendezvous_failed, words};
}

// Rank 0, which keeps the store: those that come later hear of the refusal as well.
void stay_for_all(c10d::Store& store, int64_t world, Clock::time_point end) {
  while (store.add("all/read", 0) + store.add("refusing", 0) < world - 1 && Clock::now() < end)
    std::this_thread::sleep_for(Milliseconds(10));
}

Roll join(const StorePtr& store, StoreServer* server, const launch::RankEnvironment& ranks,
          Milliseconds timeout, Clock::time_point end) {
  int64_t rank = ranks.rank, world = ranks.world_size;
  std::string name = std::to_string(rank);
  if (store->add("seen/" + name, 1) > 1) {
    store->set("twice", bytes_of(name));
    return twice(rank);
  }
  store->set(name, bytes_of(std::to_string(world)));
  if (rank == 0) {
    Roll roll = call_roll(*store, server, world, place_of(ranks), timeout, end);
    if (server != nullptr && roll.words.empty() && roll.refusal.empty()) server->ranks_met();
    int64_t present = 0;
    for (int64_t r = 1; r < world; ++r) present += store->check({std::to_string(r)}) ? 1 : 0;
    publish(*store, "all", std::to_string(world) + "\n" + encode(roll), present);
    if (!roll.refusal.empty() && !ranks.meets_at_agent())
      stay_for_all(*store, world, std::min(end, Clock::now() + kRefusalStays));
    return roll;
  }
  // Rank 0 may have begun to wait a little later.
  std::string text = hear(*store, "all", left_until(end) + Milliseconds(2000)),
              theirs = text.substr(0, text.find('\n'));
  Roll roll = decode_roll(text.substr(theirs.size() + 1));
  if (roll.words.empty() && roll.refusal.empty() && theirs != std::to_string(world))
    return {ErrorCode::ranks_disagree,
            "rank " + name + " has WORLD_SIZE " + std::to_string(world) + ", rank 0 has " + theirs};
  return roll;
}

}  // namespace

void refuse(const launch::RankEnvironment& ranks, const Error& error) noexcept {
  if (ranks.world_size == 1 || ranks.source == launch::RankEnvironment::Source::local) return;
  try {
    Error named = error;
    named.note("on " + name_here(ranks.rank));
    auto end = Clock::now() + kRefusalStays;
    StorePtr store = ranks.rank != 0 && ranks.meets_at_agent()
                         ? store_of_launcher(ranks, kRefusalStays, end)
                         : open_store(ranks, kRefusalStays, end).store;
    store->setTimeout(kRefusalStays);
    store = c10::make_intrusive<c10d::PrefixStore>("join", of_this_attempt(store, ranks));
    bounded(kRefusalStays + Milliseconds(1000), [=, text = encode_error(named)] {
      if (ranks.rank != 0) {
        store->set("refused", bytes_of(text));
        store->add("refusing", 1);
        return;
      }
      store->set("all", bytes_of(std::to_string(ranks.world_size) + "\n" +
                                 encode({ErrorCode::rank_failed, "", text})));
      if (!ranks.meets_at_agent()) stay_for_all(*store, ranks.world_size, end);
    });
  } catch (...) {  // nobody is there who could hear it
  }
}

StorePtr connect_store(const launch::RankEnvironment& ranks, Milliseconds timeout,
                       const std::string& interface) {
  if (ranks.world_size == 1) return c10::make_intrusive<c10d::HashStore>();
  launch::raise_descriptor_limit();  // a program that embeds the engine may not have
  auto end = Clock::now() + timeout;
  Opened opened = open_store(ranks, timeout, end, interface);
  StorePtr store = opened.store;
  store->setTimeout(timeout);
  store = of_this_attempt(store, ranks);
  if (opened.everywhere) store->set(kEverywhere, bytes_of("1"));
  Roll roll;
  try {
    StorePtr joined = c10::make_intrusive<c10d::PrefixStore>("join", store);
    roll = bounded(left_until(end) + Milliseconds(4000), [=, server = opened.server] {
      return join(joined, server.get(), ranks, timeout, end);
    });
  } catch (const Error&) {
    throw;
  } catch (const NoAnswer&) {
    roll.words = "rank 0, which keeps the store at " + place_of(ranks) +
                 ", did not answer within " + seconds(timeout) + ": it hangs or is stopped";
  } catch (const std::exception&) {
    roll.words = "rank " + std::to_string(ranks.rank) + " lost the store of rank 0 at " +
                 place_of(ranks) + ": rank 0 ended, or waits no longer";
  }
  if (!roll.refusal.empty()) throw decode_error(roll.refusal);
  if (roll.words.empty()) return store;
  Error error(roll.code, roll.words);
  if (roll.code == ErrorCode::rendezvous_failed)
    error.key("dist_env.timeout_minutes")
        .help("start as many processes as WORLD_SIZE says, each with its own RANK")
        .help(
            "look at the logs of the ranks named here; raise dist_env.timeout_minutes when they "
            "are only slow to start");
  else
    error.help(
        "start as many processes as WORLD_SIZE says, each with its own RANK, and all with the same "
        "WORLD_SIZE");
  throw error;
}

}  // namespace meshwright::rendezvous
