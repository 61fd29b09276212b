#include "engine/rendezvous/open_store.h"

#include <unistd.h>

#include <algorithm>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>

#include "engine/rendezvous/bounded.h"
#include "engine/rendezvous/connectivity.h"
#include "engine/rendezvous/interfaces.h"
#include "engine/rendezvous/listen.h"
#include "engine/rendezvous/store_client.h"
#include "engine/rendezvous/store_server.h"
#include "meshwright/error.h"

namespace meshwright::rendezvous {

namespace {

using Clock = std::chrono::steady_clock;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

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

[[noreturn]] void no_name(const launch::RankEnvironment& ranks, Milliseconds timeout) {
  unreachable(ranks, timeout, "the name " + ranks.master_addr + " is not answered for", false);
}

// LibTorch's own, which the launcher's agent serves: it asks nobody for a secret.
StorePtr store_of_agent(const launch::RankEnvironment& ranks, Milliseconds timeout,
                        Clock::time_point end) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(ranks.master_port);
  options.isServer = false;
  options.waitWorkers = false;
  options.timeout = timeout;
  const std::string& host = ranks.master_addr;
  std::string why = "the name " + host + " is not answered for";
  try {
    why = bounded(left_until(end) + Milliseconds(500),
                  [host, port = ranks.master_port, end] { return try_connect(host, port, end); });
  } catch (const NoAnswer&) {
  }
  if (!why.empty()) unreachable(ranks, timeout, why, false);
  try {
    return bounded(left_until(end) + Milliseconds(1000), [host, options]() -> StorePtr {
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

// Where the ranks meet, as rank 0 tells in the launcher's store: here, or in its own at "29501
// 10.70.0.1 127.0.0.1", the last for ranks of its own host; without an address that is where
// MASTER_ADDR leads.
const std::string kPlaceOfOwn = "store", kHere = "here";

// Rank 0; false: the launcher's store does not answer.
bool tell(const StorePtr& agent, const std::string& place, Clock::time_point end) {
  try {
    return bounded(left_until(end) + Milliseconds(1000), [agent, place] {
      agent->set(kPlaceOfOwn, bytes_of(place));
      return true;
    });
  } catch (const NoAnswer&) {
  } catch (const std::exception&) {
  }
  return false;
}

// The others.
std::string heard(const launch::RankEnvironment& ranks, const StorePtr& agent, Milliseconds timeout,
                  Clock::time_point end) {
  try {
    return bounded(left_until(end) + Milliseconds(1000), [agent, end] {
      agent->wait({kPlaceOfOwn}, left_until(end));
      return text_of(agent->get(kPlaceOfOwn));
    });
  } catch (const NoAnswer&) {
  } catch (const std::exception&) {
  }
  unreachable(ranks, timeout, "rank 0 has not told, in the launcher's store, where the ranks meet",
              false);
}

// Rank 0.
OpenDoors tell_place(const launch::RankEnvironment& ranks, const StorePtr& agent,
                     Milliseconds timeout, const std::string& interface, Clock::time_point end) {
  const std::string here = ranks.one_host() ? "" : route_to_master(ranks, end).local;
  OpenDoors doors = open_doors_beside(ranks, interface, here);
  std::string place =
      std::to_string(bound_port(doors.sockets[0])) + " " + (doors.everywhere ? "" : doors.own);
  if (!doors.local.empty()) place += " " + doors.local;
  if (tell(agent, place, end)) return doors;
  for (int fd : doors.sockets) ::close(fd);
  unreachable(ranks, timeout, "the launcher's store, which was there, does not answer", false);
}

// The others, until `end`: rank 0 may have died and come again meanwhile. What anybody else writes
// there can keep them from the store, and no more: its other end has to know the secret.
StorePtr follow_place(const launch::RankEnvironment& ranks, const StorePtr& agent, StorePlace to,
                      Milliseconds timeout, Clock::time_point end) {
  // Longer each time: the kernel repeats a lost packet after 1, 3 and 7 seconds.
  for (Milliseconds patience(1000);; patience = std::min(2 * patience, Milliseconds(16000))) {
    const std::string told = heard(ranks, agent, timeout, end);
    if (told == kHere) refused(ranks, {NoStore::Why::refused, "", wire::Refusal::secret_unknown});
    const size_t space = std::min(told.find(' '), told.size()),
                 second = std::min(told.find(' ', space + 1), told.size());
    const std::string address = told.substr(std::min(space + 1, second),
                                            second - std::min(space + 1, second)),
                      local = told.substr(std::min(second + 1, told.size()));
    const int64_t port = number_of(told.substr(0, space), kPlaceOfOwn, "rank 0");
    if (port < 1 || port > 65535 || (!address.empty() && !socket_address(address, 1)) ||
        (!local.empty() && !is_loopback_address(local)))
      unreachable(ranks, timeout,
                  "\"" + told.substr(0, 80) + "\", as the launcher's store says, is no place",
                  false);
    launch::RankEnvironment there = ranks;  // in the words of errors
    if (!address.empty()) there.master_addr = address;
    there.master_port = to.port = static_cast<int>(port);
    to.host = !local.empty() && is_of_this_host(address) ? local : there.master_addr;
    const Clock::time_point once = std::min(end, Clock::now() + patience);
    auto is_over = [&] { return Clock::now() + Milliseconds(200) >= end; };
    try {
      return bounded(left_until(once) + Milliseconds(1000),
                     [to, once, timeout] { return remote_store(to, once, timeout); });
    } catch (const NoAnswer&) {
      if (is_over()) no_name(there, timeout);
    } catch (const NoStore& why) {
      if (is_over() || why.why == NoStore::Why::refused) no_store(there, timeout, why);
    }
    std::this_thread::sleep_for(Milliseconds(100));
  }
}

}  // namespace

std::string place_of(const launch::RankEnvironment& ranks) {
  return ranks.master_addr + ":" + std::to_string(ranks.master_port);
}

std::string words_of_twice(int64_t rank) {
  return "two processes have RANK " + std::to_string(rank) +
         ", or an earlier job still uses this store";
}

StorePtr of_this_attempt(const StorePtr& store, const launch::RankEnvironment& ranks) {
  return c10::make_intrusive<c10d::PrefixStore>("meshwright/" + std::to_string(ranks.restart),
                                                store);
}

StorePtr store_of_launcher(const launch::RankEnvironment& ranks, Milliseconds timeout,
                           Clock::time_point end) {
  return store_of_agent(ranks, timeout, end);
}

Opened open_store(const launch::RankEnvironment& ranks, Milliseconds timeout, Clock::time_point end,
                  const std::string& interface) {
  StorePtr launchers, agent;
  if (ranks.agent_store) {
    launchers = store_of_agent(ranks, timeout, end);
    agent = of_this_attempt(launchers, ranks);
  }
  if (ranks.meets_at_agent()) {
    if (ranks.rank == 0) {
      if (!tell(agent, kHere, end))
        unreachable(ranks, timeout, "the launcher's store, which was there, does not answer",
                    false);
    } else if (heard(ranks, agent, timeout, end) != kHere) {
      refused(ranks, {NoStore::Why::refused, "", wire::Refusal::secret_missing});
    }
    return {launchers};
  }
  StorePlace to{
      ranks.master_addr,
      ranks.master_port,
      {ranks.secret, ranks.job, ranks.rank, ranks.world_size, wire::random_bytes(wire::kProcess)}};
  Opened out;
  if (agent && ranks.rank != 0) return {follow_place(ranks, agent, to, timeout, end)};
  if (ranks.rank == 0) {
    OpenDoors doors =
        agent ? tell_place(ranks, agent, timeout, interface, end) : open_doors(ranks, interface);
    to.host = doors.nearest();
    if (agent) to.port = bound_port(doors.sockets[0]);
    out.everywhere = doors.everywhere;
    for (int fd : doors.sockets) keep_alive(fd, timeout);
    out.server = std::make_shared<StoreServer>(std::move(doors.sockets), to.badge);
  } else if (ranks.one_host()) {
    to.host = "127.0.0.1";  // whatever name the launcher gave it
  }
  try {
    out.store = bounded(
        left_until(end) + Milliseconds(1000),
        [to, end, timeout, server = out.server] { return remote_store(to, end, timeout, server); });
  } catch (const NoAnswer&) {
    no_name(ranks, timeout);
  } catch (const NoStore& why) {
    no_store(ranks, timeout, why);
  }
  return out;
}

}  // namespace meshwright::rendezvous
