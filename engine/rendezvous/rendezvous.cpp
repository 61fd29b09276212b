#include "engine/rendezvous/rendezvous.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "meshwright/error.h"

namespace meshwright::rendezvous {

namespace {

using Milliseconds = std::chrono::milliseconds;

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }
std::string text_of(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

std::string seconds(Milliseconds time) {
  std::string out = std::to_string(static_cast<double>(time.count()) / 1000);
  return out.substr(0, out.find('.') + 2) + " s";
}

// LibTorch's server would listen on every interface; a socket bound to loopback and handed over is honoured.
int listen_on_loopback(int port) {
  int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 || ::listen(fd, 512) != 0) {
    int reason = errno;
    if (fd >= 0) ::close(fd);
    Error error(ErrorCode::rendezvous_failed, "rank 0 cannot listen on 127.0.0.1:" + std::to_string(port) + ": " + std::strerror(reason));
    if (reason == EADDRINUSE) error.help("another program has the port: set MASTER_PORT to a free one");
    throw error.help("let `meshwright train FILE --nproc N` choose a port");
  }
  return fd;
}

std::string place(const launch::RankEnvironment& ranks) { return ranks.master_addr + ":" + std::to_string(ranks.master_port); }

}  // namespace

c10::intrusive_ptr<c10d::Store> connect_store(const launch::RankEnvironment& ranks, Milliseconds timeout) {
  if (ranks.world_size == 1) return c10::make_intrusive<c10d::HashStore>();
  auto begin = std::chrono::steady_clock::now();
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(ranks.master_port);
  options.isServer = ranks.rank == 0 && !ranks.agent_store;
  options.waitWorkers = false;
  options.timeout = timeout;
  if (options.isServer) {
    if (ranks.listen_fd >= 0)
      options.masterListenFd = ranks.listen_fd;
    else if (ranks.one_host())
      options.masterListenFd = listen_on_loopback(ranks.master_port);
  }
  // On one host the server is on loopback whatever name the launcher gave it.
  std::string host = ranks.one_host() && !ranks.agent_store ? "127.0.0.1" : ranks.master_addr;
  c10::intrusive_ptr<c10d::Store> store;
  try {
    store = c10::make_intrusive<c10d::TCPStore>(host, options);
  } catch (const std::exception& e) {
    const auto* torch_error = dynamic_cast<const c10::Error*>(&e);
    std::string why = torch_error ? torch_error->what_without_backtrace() : e.what();
    throw Error(ErrorCode::rendezvous_failed, "rank " + std::to_string(ranks.rank) + " could not reach the store of rank 0 at " +
                                                  place(ranks) + " within " + seconds(timeout) + ": " +
                                                  why.substr(0, std::min(why.find('\n'), size_t{200})))
        .help("check that rank 0 runs and that MASTER_ADDR and MASTER_PORT name it")
        .help("raise dist_env.timeout_minutes when ranks start far apart");
  }
  store->setTimeout(timeout);
  // Everybody is here before anybody goes on, so that a missing rank has a name.
  auto joined = c10::make_intrusive<c10d::PrefixStore>("meshwright/join", store);
  joined->set(std::to_string(ranks.rank), bytes_of(std::to_string(ranks.world_size)));
  auto missing = [&]() {
    std::string list;
    int64_t count = 0;
    for (int64_t r = 0; r < ranks.world_size; ++r)
      if (!joined->check({std::to_string(r)}) && count++ < 8) list += (list.empty() ? "" : ", ") + std::to_string(r);
    return count > 8 ? list + " and " + std::to_string(count - 8) + " more" : list;
  };
  try {
    if (ranks.rank == 0) {
      for (int64_t r = 0; r < ranks.world_size; ++r) {
        auto left = timeout - std::chrono::duration_cast<Milliseconds>(std::chrono::steady_clock::now() - begin);
        joined->wait({std::to_string(r)}, std::max(left, Milliseconds(1)));
      }
      joined->set("all", bytes_of("1"));
    } else {
      joined->wait({"all"}, timeout + Milliseconds(2000));
    }
  } catch (const std::exception&) {
    std::string absent;
    try {
      absent = missing();
    } catch (const std::exception&) {  // the store went away with rank 0
    }
    throw Error(ErrorCode::rendezvous_failed, "rank " + std::to_string(ranks.rank) + " waited " + seconds(timeout) + " at " + place(ranks) +
                                                  (absent.empty() ? ": rank 0 went away" : " in vain for rank " + absent) + " of " +
                                                  std::to_string(ranks.world_size))
        .key("dist_env.timeout_minutes")
        .help("start as many processes as WORLD_SIZE says, each with its own RANK")
        .help("look at the logs of the missing ranks");
  }
  return store;
}

void compare_ranks(c10d::Store& base, int64_t rank, int64_t world, const Facts& facts, Milliseconds timeout) {
  if (world == 1) return;
  c10d::PrefixStore store("meshwright/compare", c10::intrusive_ptr<c10d::Store>::reclaim_copy(&base));
  std::string mine;
  for (const auto& [name, value] : facts) mine += name + "\x1f" + value + "\x1e";
  std::string verdict;
  try {
    if (rank != 0) {
      store.set(std::to_string(rank), bytes_of(mine));
      store.wait({"verdict"}, timeout);
      verdict = text_of(store.get("verdict"));
    } else {
      // Rank 0 reads all and publishes one verdict: no rank reads a world's worth.
      std::map<std::string, std::vector<int64_t>> kinds{{mine, {0}}};
      for (int64_t r = 1; r < world; ++r) {
        store.wait({std::to_string(r)}, timeout);
        kinds[text_of(store.get(std::to_string(r)))].push_back(r);
      }
      if (kinds.size() > 1) {
        const std::string* normal = &mine;
        for (const auto& [kind, members] : kinds)
          if (members.size() > kinds[*normal].size()) normal = &kind;
        auto parse = [](const std::string& text) {
          std::map<std::string, std::string> out;
          for (size_t at = 0, end; (end = text.find('\x1e', at)) != std::string::npos; at = end + 1) {
            size_t split = text.find('\x1f', at);
            out[text.substr(at, split - at)] = text.substr(split + 1, end - split - 1);
          }
          return out;
        };
        std::map<std::string, std::string> expected = parse(*normal);
        for (const auto& [kind, members] : kinds) {
          if (kind == *normal) continue;
          std::string who;
          for (size_t i = 0; i < members.size() && i < 8; ++i) who += (i ? ", " : "") + std::to_string(members[i]);
          if (members.size() > 8) who += " and " + std::to_string(members.size() - 8) + " more";
          for (const auto& [name, value] : parse(kind))
            if (expected[name] != value)
              verdict += (verdict.empty() ? "rank " : "; rank ") + who + " has " + name + " " + value + ", the others " + expected[name];
        }
      }
      store.set("verdict", bytes_of(verdict.empty() ? "-" : verdict));
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    throw Error(ErrorCode::rendezvous_failed,
                "rank " + std::to_string(rank) + " could not compare itself with the others within " + seconds(timeout))
        .help("look at the logs of the other ranks: one of them ended early");
  }
  if (!verdict.empty() && verdict != "-")
    throw Error(ErrorCode::ranks_disagree, verdict).help("start all ranks with the same file, --set values, environment and installation");
}

namespace {

World::Connect over_gloo(const launch::RankEnvironment& ranks, c10::intrusive_ptr<c10d::Store> store, Milliseconds timeout) {
  bool one_host = ranks.one_host();
  return [store, timeout, one_host, rank = ranks.rank](const std::string& name, const std::vector<int64_t>& members) {
    auto index = std::find(members.begin(), members.end(), rank) - members.begin();
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
    if (interface && *interface)
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(interface));
    else if (one_host)
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    else
      options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
    options->threads = 1;  // as fast as more, and switches least
    c10::intrusive_ptr<c10d::Backend> backend =
        c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>("meshwright/group/" + name, store),
                                                    static_cast<int>(index), static_cast<int>(members.size()), options);
    return backend;
  };
}

World::Connect over_nccl(const launch::RankEnvironment& ranks, c10::intrusive_ptr<c10d::Store> store, const device::Chosen& chosen,
                         Milliseconds timeout) {
  // The world's own watch speaks first, in our words; LibTorch's would end the process.
  Milliseconds last_resort = timeout + std::chrono::minutes(2);
  return [store, last_resort, nccl = chosen.nccl, device = chosen.device.index(), rank = ranks.rank](const std::string& name,
                                                                                                     const std::vector<int64_t>& members) {
    auto index = std::find(members.begin(), members.end(), rank) - members.begin();
    return nccl->make_nccl(c10::make_intrusive<c10d::PrefixStore>("meshwright/group/" + name, store), static_cast<int>(index),
                           static_cast<int>(members.size()), device, last_resort);
  };
}

}  // namespace

std::shared_ptr<World> make_world(const launch::RankEnvironment& ranks, c10::intrusive_ptr<c10d::Store> store, const device::Chosen& chosen,
                                  Milliseconds timeout) {
  World::Connect connect;
  if (ranks.world_size > 1) connect = chosen.nccl ? over_nccl(ranks, store, chosen, timeout) : over_gloo(ranks, store, timeout);
  auto world = std::make_shared<World>(ranks.rank, ranks.world_size, chosen.device, timeout, connect);
  for (const std::string& notice : chosen.notices) world->notice(notice);
  return world;
}

}  // namespace meshwright::rendezvous
