// compare_ranks(): all ranks mean the same job, or hear which one does not.
#include "engine/launch/rendezvous/rendezvous.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "engine/launch/rendezvous/connectivity.h"
#include "engine/launch/rendezvous/deadlines.h"
#include "engine/launch/rendezvous/endpoints.h"
#include "engine/launch/rendezvous/error_exchange.h"
#include "engine/launch/rendezvous/heartbeat.h"
#include "engine/launch/rendezvous/notices.h"
#include "meshwright/error.h"
#include "sdk/base/transport.h"
#include "sdk/base/wait.h"
#include "sdk/base/words.h"

namespace meshwright::rendezvous {

namespace {

const std::string* find(const Facts& facts, const std::string& name) {
  for (const auto& [known, value] : facts)
    if (known == name) return &value;
  return nullptr;
}

std::string brief(const std::string& value) {
  return value.size() <= 80 ? value : value.substr(0, 77) + "...";
}

// "rank 2 has optimizer.lr 0.002, the others 0.001; ..." What only one side has (the options of its
// strategy, say) follows from something else, and is said only when nothing else differs.
std::string differences(const std::vector<int64_t>& odd, const Facts& theirs, const Facts& usual) {
  std::string who = named_ranks(odd) + (odd.size() == 1 ? " has " : " have ");
  std::vector<std::string> changed, lone;
  for (const auto& [name, value] : theirs) {
    const std::string* other = find(usual, name);
    if (other == nullptr)
      lone.push_back(name + " " + brief(value) + ", which the others do not have");
    else if (*other != value)
      changed.push_back(name + " " + brief(value) + ", the others " + brief(*other));
  }
  for (const auto& [name, value] : usual)
    if (find(theirs, name) == nullptr)
      lone.push_back("no " + name + ", the others " + brief(value));
  const std::vector<std::string>& said = changed.empty() ? lone : changed;
  return who + text::first_few(said, 6, "; ");
}

// Rank 0 reads all: no other rank reads a world's worth. Empty: all are alike.
std::string judge(c10d::Store& store, int64_t world, const std::string& mine,
                  std::chrono::steady_clock::time_point end) {
  std::map<std::string, std::vector<int64_t>> kinds{{mine, {0}}};
  for (int64_t r = 1; r < world; ++r) {
    std::string key = std::to_string(r);
    try {
      store.wait({key}, left_until(end));
    } catch (const std::exception&) {
      throw Error(ErrorCode::rendezvous_failed,
                  "rank 0 timed out: rank " + key +
                      " did not say what it is to train; it ended, hangs or is stopped")
          .key("dist_env.timeout_minutes")
          .help("look at the log of rank " + key);
    }
    kinds[text_of(store.get(key))].push_back(r);
  }
  const std::string* usual = &mine;
  for (const auto& [kind, members] : kinds)
    if (members.size() > kinds[*usual].size()) usual = &kind;
  std::string out;
  for (const auto& [kind, members] : kinds)
    if (kind != *usual)
      out += (out.empty() ? "" : "; ") +
             differences(members, told<Facts>(kind, "compare", named_ranks(members)),
                         told<Facts>(*usual, "compare", "most ranks"));
  return out;
}

}  // namespace

void compare_ranks(c10d::Store& base, int64_t rank, int64_t world, const Facts& facts,
                   Milliseconds timeout) {
  if (world == 1) return;
  auto store = c10::make_intrusive<c10d::PrefixStore>(
      "compare", c10::intrusive_ptr<c10d::Store>::reclaim_copy(&base));
  auto end = std::chrono::steady_clock::now() + timeout;
  const std::string mine = base::json_text(facts);
  const WithOthers words{rank, timeout, "compare itself with the others", "rank 0 gave no verdict"};
  const std::string verdict = with_others(words, timeout + Milliseconds(3000), [=] {
    if (rank != 0) {
      store->set(std::to_string(rank), bytes_of(mine));
      return hear(*store, "verdict", left_until(end) + Milliseconds(2000));
    }
    std::string found = judge(*store, world, mine, end);
    publish(*store, "verdict", found.empty() ? "-" : found, world - 1);
    return found;
  });
  if (!verdict.empty() && verdict != "-")
    throw Error(ErrorCode::ranks_disagree, verdict)
        .help("start all ranks with the same file, --set values, environment and installation");
}

// make_world(): groups, and who is to blame when one of their collectives does not end.

namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// How long one whose connection broke waits for the words of the rank that broke it.
constexpr Milliseconds kPosted(2000);

// Who of call.ranks does not report here, or, where all do, who waits in what comes first. The
// keeper of the store stays until the members that did report have their answer, too.
RollAnswers call_roll(c10d::Store& store, int64_t rank, bool keeper, const RollCallTimes& times,
                      const RollCall& call) {
  auto wait_for = [&](const std::string& key, std::chrono::steady_clock::time_point end) {
    return base::wait_until(end, Milliseconds(20), [&] { return store.check({key}); });
  };
  auto end = std::chrono::steady_clock::now() + times.window;
  store.set(std::to_string(rank), bytes_of(std::to_string(call.order) + " " + call.activity));
  RollAnswers out;
  std::vector<int64_t> reported;
  for (int64_t r : call.ranks)
    (wait_for(std::to_string(r), end) ? reported : out.silent).push_back(r);
  // A rank that waits in something else may be before or behind all of these: no claim then.
  int64_t first = call.order;
  bool ordered = out.silent.empty() && first >= 0;
  for (int64_t r : reported) {
    const std::string told = text_of(store.get(std::to_string(r)));
    const int64_t order = number_of(told.substr(0, told.find(' ')), "late/" + std::to_string(r),
                                    "rank " + std::to_string(r));
    ordered = ordered && order >= 0;
    if (order >= first) continue;
    first = order;
    out.behind = r;
    out.activity = told.substr(std::min(told.find(' '), told.size() - 1) + 1);
  }
  if (!ordered) out.behind = -1;
  store.set("done/" + std::to_string(rank), bytes_of("1"));
  for (int64_t r : reported)
    if (keeper) wait_for("done/" + std::to_string(r), end + times.stays);
  return out;
}

// A device of gloo listens at a port of its own, which errors call by its address; gloo does not
// tell the port, but the process has one more listening socket than before.
std::mutex& one_at_a_time() {
  static std::mutex mutex;
  return mutex;
}

struct Listening {
  std::shared_ptr<::gloo::transport::Device> device;
  int port = 0;  // 0: not found
};

std::set<int> listening_ports(const std::string& address) {
  std::set<int> out;
  for (const OwnSocket& own : own_sockets())
    if (own.listens() && own.local.address == address) out.insert(own.local.port);
  return out;
}

Listening listen_for_group(const std::string& address) {
  std::lock_guard lock(one_at_a_time());  // ranks may be threads of one process
  std::set<int> before = listening_ports(address);
  Listening out{c10d::ProcessGroupGloo::createDeviceForHostname(address)};
  for (int port : listening_ports(address))
    if (!before.contains(port)) out.port = port;
  return out;
}

// When a connection breaks gloo names its other end: where the peer listens, or, if the peer opened
// it, a port that the kernel gave it. So the members tell each other both, and errors can name rank
// and host. `members` and `index` as in the group; all are connected.
void name_peers(c10d::Store& store, size_t index, const std::vector<int64_t>& members,
                const std::vector<Endpoint>& endpoints) {
  auto endpoint = [&](size_t i) -> const Endpoint& {
    return endpoints[static_cast<size_t>(members[i])];
  };
  auto number = [&](size_t i, const std::vector<uint8_t>& port) {
    return static_cast<int>(number_of(text_of(port), "port", "rank " + std::to_string(members[i])) &
                            0xffff);
  };
  auto name = [&](size_t i, const std::vector<uint8_t>& port) {
    name_peer(endpoint(i).address, number(i, port),
              "rank " + std::to_string(members[i]) + " on " + endpoint(i).host);
  };
  std::vector<std::string> listen_keys, ours, theirs;
  std::vector<size_t> others;
  for (size_t i = 0; i < members.size(); ++i) {
    if (i == index) continue;
    others.push_back(i);
    listen_keys.push_back("port/" + std::to_string(i));
    ours.push_back("opened/" + std::to_string(index) + "/" + std::to_string(i));
    theirs.push_back("opened/" + std::to_string(i) + "/" + std::to_string(index));
  }
  std::vector<std::vector<uint8_t>> ports = store.multiGet(listen_keys);
  std::map<std::pair<std::string, int>, size_t> listeners;
  for (size_t k = 0; k < others.size(); ++k) {
    name(others[k], ports[k]);
    listeners[{endpoint(others[k]).address, number(others[k], ports[k])}] = k;
  }
  std::vector<std::vector<uint8_t>> opened(others.size(), bytes_of("0"));
  for (const OwnSocket& own : own_sockets())
    if (auto listener = listeners.find({own.remote.address, own.remote.port});
        listener != listeners.end())
      opened[listener->second] = bytes_of(std::to_string(own.local.port));
  store.multiSet(ours, opened);
  opened = store.multiGet(theirs);
  for (size_t k = 0; k < others.size(); ++k) name(others[k], opened[k]);
}

// Whether members may be on several hosts, alike on all of them. MESHWRIGHT_HOSTS pretends some on
// one machine.
bool spans_hosts(const std::vector<int64_t>& members, const std::vector<Endpoint>& endpoints) {
  auto address = [&](int64_t rank) { return endpoints[static_cast<size_t>(rank)].address; };
  return std::getenv("MESHWRIGHT_HOSTS") != nullptr ||
         std::any_of(members.begin(), members.end(),
                     [&](int64_t rank) { return address(rank) != address(members[0]); });
}

ConnectGroup over_gloo(const launch::RankEnvironment& ranks, const StorePtr& store,
                       std::vector<Endpoint> endpoints, Milliseconds timeout,
                       const std::shared_ptr<ErrorExchange>& exchange, int64_t connections) {
  return [store, timeout, exchange, connections, endpoints = std::move(endpoints),
          rank = ranks.rank](const std::string& name, const std::vector<int64_t>& members) {
    auto index =
        static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
    const Endpoint& own = endpoints[static_cast<size_t>(rank)];
    std::vector<Listening> listening;  // one for each connection
    try {
      const int64_t number = spans_hosts(members, endpoints) ? connections : 1;
      for (int64_t i = 0; i < number; ++i) listening.push_back(listen_for_group(own.address));
    } catch (const std::exception& error) {
      std::string why = error.what();
      throw Error(ErrorCode::bad_interface, "rank " + std::to_string(rank) + " on " + own.host +
                                                " cannot listen on " + own.address + ": " +
                                                why.substr(0, why.find('\n')) +
                                                "; there are: " + list_of(interfaces()))
          .key("dist_env.interface")
          .help(
              "set dist_env.interface, or GLOO_SOCKET_IFNAME on each host, to the interface that "
              "joins the hosts");
    }
    auto size = static_cast<int>(members.size());
    try {
      auto connect_one = [=](const std::string& prefix,
                             const Listening& listener) -> c10::intrusive_ptr<c10d::Backend> {
        auto prefixed = c10::make_intrusive<c10d::PrefixStore>(prefix, store);
        auto options = c10d::ProcessGroupGloo::Options::create(timeout);
        options->devices.push_back(listener.device);
        options->threads = 1;  // as fast as more, and switches least
        prefixed->set("port/" + std::to_string(index), bytes_of(std::to_string(listener.port)));
        auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(prefixed, index, size, options);
        // All have come, and gloo would take whoever else connects for as long as the job lasts.
        // Where the kernel keeps the port open, strangers take descriptors, and nothing else.
        if (listener.port > 0) static_cast<void>(shut(own.address, listener.port));
        name_peers(*prefixed, static_cast<size_t>(index), members, endpoints);
        return group;
      };
      auto connect = [=] {
        std::vector<c10::intrusive_ptr<c10d::Backend>> out;
        for (const Listening& listener : listening)
          out.push_back(connect_one(
              "group/" + name + (out.empty() ? "" : "/connection/" + std::to_string(out.size())),
              listener));
        return out;
      };
      // A member that has ended will never come.
      auto backends = bounded(timeout + Milliseconds(2000), connect, [&] {
        if (std::optional<Error> told = exchange ? exchange->read_beside() : std::nullopt)
          throw *told;
      });
      return transport_over(std::move(backends));
    } catch (const NoAnswer&) {
      const bool store_answers = exchange && !exchange->silent();
      throw Error(ErrorCode::rendezvous_failed,
                  "rank " + std::to_string(rank) + " could not connect to the ranks of group " +
                      name + " within " + seconds(timeout) +
                      (store_answers ? ": not all of them came, or they do not reach each other"
                                     : ": rank 0, which keeps the store, hangs or is stopped"))
          .key("dist_env.timeout_minutes")
          .help(store_answers ? "look at the logs of the other ranks: one of them ended, hangs or "
                                "is stopped, or the network between hosts is broken"
                              : "look at the log of rank 0");
    }
  };
}

// nullptr: nobody tells who ends. Ranks that one process has started are ended by it.
std::shared_ptr<Heartbeat> make_heartbeat(const launch::RankEnvironment& ranks,
                                          const StorePtr& store, const HeartbeatTimes& times,
                                          const std::string& interface) {
  if (ranks.source == launch::RankEnvironment::Source::local) return nullptr;
  // The first group says more.
  return attempt(left_until(times.all),
                 [=] { return std::make_shared<Heartbeat>(ranks, *store, times, interface); })
      .value_or(nullptr);
}

// Rank 0: as Heartbeat::unwatched().
std::string unwatched_by(const launch::RankEnvironment& ranks,
                         const std::shared_ptr<Heartbeat>& heartbeat, const StorePtr& store,
                         HeartbeatTimes::Time end) {
  if (ranks.source == launch::RankEnvironment::Source::local) return "";
  if (!heartbeat)
    return "no rank will hear at once when another has ended, but after the timeout: rank 0 had no "
           "port for that in time";
  return attempt(left_until(end) + Milliseconds(500),
                 [=] { return heartbeat->unwatched(*store, end); })
      .value_or("");
}

// `world`: where it is once it has been made.
ConnectGroup over_nccl(const launch::RankEnvironment& ranks, const StorePtr& store,
                       const device::Chosen& chosen, Milliseconds timeout,
                       const std::shared_ptr<ErrorExchange>& exchange,
                       const std::shared_ptr<Heartbeat>& heartbeat,
                       const std::shared_ptr<World*>& world) {
  // The world's own watch speaks first, in our words; LibTorch's would end the process.
  Milliseconds last_resort = timeout + std::chrono::minutes(2);
  return [store, timeout, last_resort, exchange, heartbeat, world, nccl = chosen.nccl,
          device = chosen.device,
          rank = ranks.rank](const std::string& name, const std::vector<int64_t>& members) {
    auto index =
        static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
    auto connect = [=, prefixed = c10::make_intrusive<c10d::PrefixStore>("group/" + name, store)] {
      return nccl->make_nccl(prefixed, index, static_cast<int>(members.size()), device.index(),
                             last_resort);
    };
    try {
      // NCCL waits for a member that does not come for ever.
      auto posted = std::chrono::steady_clock::time_point::max();
      auto backend = bounded(timeout, connect, [&] {
        if (std::optional<Error> told = exchange ? exchange->read_beside() : std::nullopt)
          throw *told;
        const std::optional<int64_t> ended = heartbeat ? heartbeat->ended() : std::nullopt;
        if (!ended) return;
        const auto now = std::chrono::steady_clock::now();
        posted = std::min(posted, now + (exchange ? kPosted : Milliseconds(0)));
        if (now >= posted) throw std::runtime_error("rank " + std::to_string(*ended) + " ended");
      });
      // Who is in a group tries no longer to connect to rank 0's port, as some may have when rank 0
      // counted.
      if (rank == 0 && heartbeat && *world != nullptr && std::ssize(members) == (*world)->size())
        if (const auto late =
                attempt(Milliseconds(500), [=] { return heartbeat->unwatched_since(*store); });
            late && !late->empty())
          (*world)->notice(*late);
      return transport_over(std::move(backend), device);
    } catch (const NoAnswer&) {
      throw std::runtime_error("timed out after " + seconds(timeout));
    }
  };
}

// What rank 0 of a job on several hosts has to say about who can reach it.
std::vector<std::string> open_to_others(const launch::RankEnvironment& ranks, c10d::Store& store) {
  std::vector<std::string> out;
  if (ranks.rank != 0 || ranks.one_host()) return out;
  const std::string place = ranks.master_addr + ":" + std::to_string(ranks.master_port);
  if (ranks.meets_at_agent())
    out.push_back("torchrun keeps the store at " + place +
                  ", and asks nobody for a secret: whoever reaches the port can read the "
                  "configuration and end the job; with MESHWRIGHT_JOB_SECRET, on all ranks, rank 0 "
                  "keeps a store of its own");
  else if (ranks.secret.empty())
    out.push_back("the job has no secret: whoever reaches " + place +
                  " can read the configuration and end the job; set MESHWRIGHT_JOB_SECRET on all "
                  "ranks to the output of `openssl rand -hex 32`");
  if (store.check({kEverywhere}))
    out.push_back("rank 0 listens on every interface, for MASTER_ADDR = " + ranks.master_addr +
                  " is no address of this host; dist_env.interface chooses one");
  return out;
}

// Of NCCL's sockets between hosts, before it reads its variables. What comes before the key; empty:
// nothing.
std::string set_nccl_connections(int64_t connections) {
  constexpr const char *kEach = "NCCL_NSOCKS_PERTHREAD", *kThreads = "NCCL_SOCKET_NTHREADS";
  if (connections == 1) return "";
  for (const char* name : {kEach, kThreads})
    if (std::getenv(name) != nullptr) return name;
  // These sockets belong to threads, of which NCCL has none by itself.
  ::setenv(kThreads, "1", /*overwrite=*/0);
  ::setenv(kEach, std::to_string(connections).c_str(), /*overwrite=*/0);
  return "";
}

}  // namespace

std::shared_ptr<World> make_world(const launch::RankEnvironment& ranks, const StorePtr& store,
                                  const device::Chosen& chosen, Milliseconds timeout,
                                  const std::string& interface,
                                  const std::shared_ptr<ErrorExchange>& exchange,
                                  int64_t connections) {
  ConnectGroup connect;
  std::shared_ptr<Heartbeat> heartbeat;
  std::string unwatched, before_connections;
  auto where = std::make_shared<World*>(nullptr);
  if (ranks.world_size > 1 && chosen.nccl) {
    // NCCL reads its own variable, when the first group is made.
    if (!interface.empty()) {
      address_of(interface, "dist_env.interface", interfaces());
      ::setenv("NCCL_SOCKET_IFNAME", ("=" + interface).c_str(), /*overwrite=*/0);
    }
    if (!ranks.one_host()) before_connections = set_nccl_connections(connections);
    const HeartbeatTimes times = heartbeat_times(std::chrono::steady_clock::now());
    heartbeat = make_heartbeat(ranks, store, times, interface);
    if (ranks.rank == 0) unwatched = unwatched_by(ranks, heartbeat, store, times.counted);
    connect = over_nccl(ranks, store, chosen, timeout, exchange, heartbeat, where);
  } else if (ranks.world_size > 1) {
    connect =
        over_gloo(ranks, store, find_endpoints(store, ranks, wanted_interface(interface), timeout),
                  timeout, exchange, connections);
  }
  auto world = make_world(ranks.rank, ranks.world_size, chosen.device, timeout, connect);
  *where = world.get();
  for (const std::string& notice : chosen.notices) world->notice(notice);
  if (WantedInterface wanted = wanted_interface(interface);
      ranks.world_size > 1 && !interface.empty() && wanted.name != interface)
    world->notice("rank 0 uses the interface " + wanted.name + " of " + wanted.named_by +
                  ", which comes before dist_env.interface = \"" + interface + "\"");
  const std::string more = "dist_env.connections_per_peer = " + std::to_string(connections);
  if (!before_connections.empty())
    world->notice("rank 0 has " + before_connections + " set, which comes before " + more);
  else if (connections > 1 && ranks.world_size > 1 && ranks.one_host() &&
           std::getenv("MESHWRIGHT_HOSTS") == nullptr)
    world->notice(more + " has no effect: all ranks are on one host");
  if (ranks.world_size == 1) {
    if (connections > 1)
      world->notice(more + " has no effect: one rank alone has nobody to connect to");
    if (!interface.empty())
      world->notice("dist_env.interface = \"" + interface +
                    "\" has no effect: one rank alone has nobody to reach through it");
    return world;
  }
  for (const std::string& notice : open_to_others(ranks, *store)) world->notice(notice);
  if (!unwatched.empty()) world->notice(unwatched);
  auto late = c10::make_intrusive<c10d::PrefixStore>("late", store);
  set_liveness_check(
      *world,
      [late, exchange, heartbeat, rank = ranks.rank, agent = ranks.meets_at_agent(),
       times = roll_call_times(timeout)](const RollCall& call) -> RollAnswers {
        if (call.routine) {
          const std::optional<int64_t> ended = heartbeat ? heartbeat->ended() : std::nullopt;
          return {.silent = ended ? std::vector<int64_t>{*ended} : std::vector<int64_t>()};
        }
        // A rank that fails closes its connections first and posts a moment later.
        if (std::optional<Error> told =
                exchange ? exchange->read(call.ranks.empty() ? kPosted : Milliseconds(0))
                         : std::nullopt)
          throw *told;
        if (call.ranks.empty()) return {};
        // The store is silent, and so is who keeps it: rank 0, or an agent that is no rank.
        RollAnswers no_answer;
        if (!agent && rank != 0) no_answer.silent = {0};
        if (exchange && exchange->silent() && (agent || rank != 0)) return no_answer;
        try {
          return bounded(times.all,
                         [=] { return call_roll(*late, rank, rank == 0 && !agent, times, call); });
        } catch (const NoAnswer&) {
          return no_answer;
        } catch (const std::exception&) {  // its keeper has ended
        }
        return {};
      });
  return world;
}

}  // namespace meshwright::rendezvous
