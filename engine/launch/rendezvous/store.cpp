// connect_store(): one store for all ranks, and nobody goes on before everybody is there.
#include <c10/util/intrusive_ptr.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "engine/launch/ranks.h"
#include "engine/launch/rendezvous/connectivity.h"
#include "engine/launch/rendezvous/error_exchange.h"
#include "engine/launch/rendezvous/notices.h"
#include "engine/launch/rendezvous/rendezvous.h"
#include "engine/launch/rendezvous/store.h"
#include "engine/launch/spawn.h"
#include "meshwright/error.h"
#include "sdk/base/wait.h"

namespace meshwright::rendezvous {

namespace {

using Clock = std::chrono::steady_clock;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

std::string place_of(const launch::RankEnvironment& ranks) {
  return ranks.master_addr + ":" + std::to_string(ranks.master_port);
}

std::string words_of_twice(int64_t rank) {
  return "two processes have RANK " + std::to_string(rank) +
         ", or an earlier job still uses this store";
}

[[noreturn]] void unreachable(const launch::RankEnvironment& ranks, Milliseconds timeout,
                              const std::string& why, bool silent) {
  Error error(ErrorCode::rendezvous_failed,
              "rank " + std::to_string(ranks.rank) + " could not reach the store of rank 0 at " +
                  place_of(ranks) + " within " + seconds(timeout) + ": " + why);
  error.key("dist_env.timeout_minutes");
  if (silent)
    error.help("another program may have the port: set MASTER_PORT, on all ranks, to a free one");
  throw error
      .help(
          "check that rank 0 runs, that MASTER_ADDR and MASTER_PORT name it, and that no firewall "
          "is between")
      .help(
          "set MASTER_ADDR to a numeric address of rank 0's host: rank 0 listens only where the "
          "name leads on its own host")
      .help("raise dist_env.timeout_minutes when ranks start far apart");
}

// Rank 0 has told this rank that it is none of the job.
[[noreturn]] void refused(const launch::RankEnvironment& ranks, const NoStore& why) {
  using wire::Refusal;
  const std::string rank = "rank " + std::to_string(ranks.rank);
  auto error = [&](const std::string& what) {
    return Error(ErrorCode::rendezvous_failed,
                 rank + " was refused by rank 0 at " + place_of(ranks) + ": " + what);
  };
  const std::string same =
      "set MESHWRIGHT_JOB_SECRET to one value on all ranks of the job, and to another for each job";
  switch (why.refusal) {
    case Refusal::none:
    case Refusal::wrong_secret:
      throw error("the two do not have the same MESHWRIGHT_JOB_SECRET").help(same);
    case Refusal::secret_missing:
      throw error("the job has a secret, and MESHWRIGHT_JOB_SECRET is not set here").help(same);
    case Refusal::secret_unknown:
      throw error("MESHWRIGHT_JOB_SECRET is set here, and rank 0 has none").help(same);
    case Refusal::other_job:
      throw error("another job of the launcher has that port")
          .help("set MASTER_PORT, on all ranks, to one that no other job has");
    case Refusal::rank_taken:
      throw Error(ErrorCode::bad_rank_environment, words_of_twice(ranks.rank))
          .help("start as many processes as WORLD_SIZE says, each with its own RANK")
          .help("set MASTER_PORT, on all ranks, to one that no other job has");
    case Refusal::other_world:
      throw Error(ErrorCode::ranks_disagree, rank + " has WORLD_SIZE " +
                                                 std::to_string(ranks.world_size) +
                                                 ", rank 0 has " + std::to_string(why.number))
          .help("start as many processes as WORLD_SIZE says, and all with the same WORLD_SIZE")
          .help("set MASTER_PORT, on all ranks, to one that no other job has");
    case Refusal::no_such_rank:
      throw error("it has WORLD_SIZE " + std::to_string(why.number))
          .help("start all ranks with the same WORLD_SIZE");
    case Refusal::crowded:
      throw error("it has too many connections already").help("this is a defect of the program");
  }
  throw error("for no known reason");
}

// Why there is no store becomes the error of this rank.
[[noreturn]] void no_store(const launch::RankEnvironment& ranks, Milliseconds timeout,
                           const NoStore& why) {
  switch (why.why) {
    case NoStore::Why::unreachable:
      unreachable(ranks, timeout, why.words, false);
    case NoStore::Why::silent:
      unreachable(ranks, timeout, "somebody accepts connections there and says nothing", true);
    case NoStore::Why::other_program:
      unreachable(ranks, timeout,
                  "somebody accepts connections there and is no store (" + why.words + ")", true);
    case NoStore::Why::refused:
      break;
  }
  refused(ranks, why);
}

std::string no_name(const launch::RankEnvironment& ranks) {
  return "the name " + ranks.master_addr + " is not answered for";
}

// LibTorch's own, which the launcher's agent serves: it asks nobody for a secret.
StorePtr store_of_agent(const launch::RankEnvironment& ranks, Milliseconds timeout,
                        Clock::time_point end) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(ranks.master_port);
  options.isServer = false;
  options.waitWorkers = false;
  options.timeout = timeout;
  const std::optional<std::string> why =
      in_time(left_until(end) + Milliseconds(500),
              [host = ranks.master_addr, port = ranks.master_port, end] {
                std::string reason;
                const int fd = connect_to(host, port, end, &reason);
                if (fd < 0) return reason;
                ::close(fd);
                return std::string();
              });
  if (!why || !why->empty()) unreachable(ranks, timeout, why.value_or(no_name(ranks)), false);
  try {
    return bounded(left_until(end) + Milliseconds(1000),
                   [host = ranks.master_addr, options]() -> StorePtr {
                     return c10::make_intrusive<c10d::TCPStore>(host, options);
                   });
  } catch (const NoAnswer&) {
    unreachable(ranks, timeout, "somebody accepts connections there and says nothing", true);
  } catch (const std::exception& e) {
    const auto* torch_error = dynamic_cast<const c10::Error*>(&e);
    std::string words = torch_error ? torch_error->what_without_backtrace() : e.what();
    unreachable(ranks, timeout,
                "somebody accepts connections there and is no store (" +
                    words.substr(0, std::min(words.find('\n'), size_t{120})) + ")",
                true);
  }
}

// Where the ranks meet, as rank 0 tells in the launcher's store: at a port of its own, and for
// ranks of its own host there. Without an address that is where MASTER_ADDR leads; port 0: here.
struct Meeting {
  int port = 0;
  std::string address = {}, local = {};
};
BOOST_DESCRIBE_STRUCT(Meeting, (), (port, address, local))
const std::string kMeeting = "store";

// Rank 0.
void tell(const launch::RankEnvironment& ranks, const StorePtr& agent, const Meeting& meeting,
          Milliseconds timeout, Clock::time_point end) {
  if (!attempt(left_until(end) + Milliseconds(1000), [agent, text = base::json_text(meeting)] {
        agent->set(kMeeting, bytes_of(text));
        return true;
      }))
    unreachable(ranks, timeout, "the launcher's store, which was there, does not answer", false);
}

// The others.
Meeting heard(const launch::RankEnvironment& ranks, const StorePtr& agent, Milliseconds timeout,
              Clock::time_point end) {
  const std::optional<std::string> text = attempt(left_until(end) + Milliseconds(1000), [=] {
    agent->wait({kMeeting}, left_until(end));
    return text_of(agent->get(kMeeting));
  });
  if (!text)
    unreachable(ranks, timeout,
                "rank 0 has not told, in the launcher's store, where the ranks meet", false);
  return told<Meeting>(*text, kMeeting, "rank 0");
}

// Rank 0.
OpenListeners tell_place(const launch::RankEnvironment& ranks, const StorePtr& agent,
                         Milliseconds timeout, const std::string& interface,
                         Clock::time_point end) {
  const std::string here = ranks.one_host() ? "" : route_to_master(ranks, end).local;
  OpenListeners listeners = open_listeners_beside(ranks, interface, here);
  try {
    tell(ranks, agent,
         {local_end(listeners.sockets[0]).port, listeners.everywhere ? "" : listeners.own,
          listeners.local},
         timeout, end);
  } catch (const Error&) {
    for (int fd : listeners.sockets) ::close(fd);
    throw;
  }
  return listeners;
}

// The others, until `end`: rank 0 may have died and come again meanwhile. What anybody else writes
// there can keep them from the store, and no more: its other end has to know the secret.
StorePtr follow_place(const launch::RankEnvironment& ranks, const StorePtr& agent, StorePlace to,
                      Milliseconds timeout, Clock::time_point end) {
  // Longer each time: the kernel repeats a lost packet after 1, 3 and 7 seconds.
  for (Milliseconds patience(1000);; patience = std::min(2 * patience, Milliseconds(16000))) {
    const auto [port, address, local] = heard(ranks, agent, timeout, end);
    if (port == 0) refused(ranks, {NoStore::Why::refused, "", wire::Refusal::secret_unknown});
    launch::RankEnvironment there = ranks;  // in the words of errors
    if (!address.empty()) there.master_addr = address;
    there.master_port = to.port = port;
    if (port < 1 || port > 65535 || (!address.empty() && !socket_address(address, 1)) ||
        (!local.empty() && !is_loopback_address(local)))
      unreachable(ranks, timeout,
                  place_of(there).substr(0, 80) + ", as the launcher's store says, is no place",
                  false);
    to.host = !local.empty() && is_of_this_host(address) ? local : there.master_addr;
    const Clock::time_point once = std::min(end, Clock::now() + patience);
    auto is_over = [&] { return Clock::now() + Milliseconds(200) >= end; };
    try {
      return bounded(left_until(once) + Milliseconds(1000),
                     [to, once, timeout] { return remote_store(to, once, timeout); });
    } catch (const NoAnswer&) {
      if (is_over()) unreachable(there, timeout, no_name(there), false);
    } catch (const NoStore& why) {
      if (is_over() || why.why == NoStore::Why::refused) no_store(there, timeout, why);
    }
    std::this_thread::sleep_for(Milliseconds(100));
  }
}

// A launcher's store outlives the ranks of one attempt; what they left in it means nothing to the
// next.
StorePtr of_this_attempt(const StorePtr& store, const launch::RankEnvironment& ranks) {
  return c10::make_intrusive<c10d::PrefixStore>("meshwright/" + std::to_string(ranks.restart),
                                                store);
}

struct Opened {
  StorePtr store;
  std::shared_ptr<StoreServer> server = nullptr;  // of rank 0
  bool everywhere = false;                        // it listens on every interface
};

// Rank 0 serves a store where MASTER_ADDR and MASTER_PORT lead, and the others connect. Under a
// launcher whose agent has a store there: without a secret all are clients of it; with one rank 0
// serves its own at another port, and tells in the agent's where that is. Tries until `end`;
// `timeout`: of later calls, and in the words of errors. Throws Error.
Opened open_store(const launch::RankEnvironment& ranks, Milliseconds timeout, Clock::time_point end,
                  const std::string& interface = {}) {
  StorePtr launchers, agent;
  if (ranks.agent_store) {
    launchers = store_of_agent(ranks, timeout, end);
    agent = of_this_attempt(launchers, ranks);
  }
  if (ranks.meets_at_agent()) {
    if (ranks.rank == 0)
      tell(ranks, agent, {}, timeout, end);
    else if (heard(ranks, agent, timeout, end).port != 0)
      refused(ranks, {NoStore::Why::refused, "", wire::Refusal::secret_missing});
    return {launchers};
  }
  StorePlace to{ranks.master_addr,
                ranks.master_port,
                {ranks.secret, ranks.job, ranks.rank, ranks.world_size,
                 launch::random_bytes(wire::kProcess)}};
  Opened out;
  if (agent && ranks.rank != 0) return {follow_place(ranks, agent, to, timeout, end)};
  if (ranks.rank == 0) {
    OpenListeners listeners = agent ? tell_place(ranks, agent, timeout, interface, end)
                                    : open_listeners(ranks, interface);
    to.host = listeners.nearest();
    if (agent) to.port = local_end(listeners.sockets[0]).port;
    out.everywhere = listeners.everywhere;
    for (int fd : listeners.sockets) keep_alive(fd, timeout);
    out.server = std::make_shared<StoreServer>(std::move(listeners.sockets), to.badge);
  } else if (ranks.one_host()) {
    to.host = kLoopback;  // whatever name the launcher gave it
  }
  try {
    out.store = bounded(
        left_until(end) + Milliseconds(1000),
        [to, end, timeout, server = out.server] { return remote_store(to, end, timeout, server); });
  } catch (const NoAnswer&) {
    unreachable(ranks, timeout, no_name(ranks), false);
  } catch (const NoStore& why) {
    no_store(ranks, timeout, why);
  }
  return out;
}

// How long ranks that refuse the job wait for those that do not know it yet.
constexpr Milliseconds kRefusalStays = std::chrono::seconds(15);

// What rank 0 found out about who is there: empty, or the words of an error for all ranks, or what
// one of them refuses.
struct Roll {
  ErrorCode code = ErrorCode::rendezvous_failed;
  std::string words;
  std::string refusal = {};  // encode_error()
  int64_t world = 0;         // as rank 0 has it
};
BOOST_DESCRIBE_STRUCT(Roll, (), (code, words, refusal, world))

Roll twice(int64_t rank) { return {ErrorCode::bad_rank_environment, words_of_twice(rank)}; }

// The rank of which two processes have come, as the second one says; what no rank says is nothing.
std::optional<int64_t> said_twice(c10d::Store& store, int64_t world) {
  if (!store.check({"twice"})) return std::nullopt;
  const std::optional<int64_t> rank = text::to_number(text_of(store.get("twice")));
  return rank && *rank >= 0 && *rank < world ? rank : std::nullopt;
}

// Rank 0: waits for everybody.
Roll call_roll(c10d::Store& store, const StoreServer* server, int64_t world,
               const std::string& where, Milliseconds timeout, Clock::time_point end) {
  std::vector<int64_t> missing;
  for (int64_t r = 0; r < world; ++r) {
    std::string key = std::to_string(r);
    base::wait_until(end, Milliseconds(20), [&] {
      return store.check({key}) || said_twice(store, world) || store.check({"refused"});
    });
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
  base::wait_until(end, Milliseconds(10), [&] {
    return store.add("all/read", 0) + store.add("refusing", 0) >= world - 1;
  });
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
    roll.world = world;
    publish(*store, "all", base::json_text(roll), present);
    if (!roll.refusal.empty() && !ranks.meets_at_agent())
      stay_for_all(*store, world, std::min(end, Clock::now() + kRefusalStays));
    return roll;
  }
  // Rank 0 may have begun to wait a little later.
  Roll roll =
      told<Roll>(hear(*store, "all", left_until(end) + Milliseconds(2000)), "all", "rank 0");
  if (roll.words.empty() && roll.refusal.empty() && roll.world != world)
    return {ErrorCode::ranks_disagree, "rank " + name + " has WORLD_SIZE " + std::to_string(world) +
                                           ", rank 0 has " + std::to_string(roll.world)};
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
                         ? store_of_agent(ranks, kRefusalStays, end)
                         : open_store(ranks, kRefusalStays, end).store;
    store->setTimeout(kRefusalStays);
    store = c10::make_intrusive<c10d::PrefixStore>("join", of_this_attempt(store, ranks));
    bounded(kRefusalStays + Milliseconds(1000), [=, text = encode_error(named)] {
      if (ranks.rank != 0) {
        store->set("refused", bytes_of(text));
        store->add("refusing", 1);
        return;
      }
      store->set(
          "all",
          bytes_of(base::json_text(Roll{ErrorCode::rank_failed, "", text, ranks.world_size})));
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
