#include "engine/launch/rendezvous/listen.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <set>

#include "engine/launch/rendezvous/bounded.h"
#include "engine/launch/rendezvous/connectivity.h"
#include "engine/launch/rendezvous/endpoints.h"
#include "meshwright/error.h"

namespace meshwright::rendezvous {

namespace {

void add_once(std::vector<std::string>& all, const std::string& one) {
  if (std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
}

// nullopt: there is no answer, not even that nobody has that name.
std::optional<std::vector<std::string>> resolve(const std::string& name) {
  try {
    return bounded(std::chrono::seconds(5), [name] {
      addrinfo hints{}, *found = nullptr;
      hints.ai_family = AF_UNSPEC;
      hints.ai_socktype = SOCK_STREAM;
      std::vector<std::string> out;
      if (::getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) return out;
      std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
      for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next)
        if (const std::string address = numeric(a->ai_addr); !address.empty())
          add_once(out, address);
      return out;
    });
  } catch (const NoAnswer&) {
    return std::nullopt;
  }
}

std::vector<std::string> addresses_on(const std::string& name, const std::vector<Interface>& all) {
  std::vector<std::string> out;
  for (const Interface& i : all)
    if (i.name == name && !i.link_local) add_once(out, i.address);
  return out;
}

}  // namespace

std::vector<std::string> addresses_to_open(const std::string& master,
                                           const std::optional<std::vector<std::string>>& resolved,
                                           const std::string& interface,
                                           const std::vector<Interface>& all) {
  std::vector<std::string> out;
  const std::vector<std::string> known = resolved.value_or(std::vector<std::string>());
  for (const std::string& address : known)
    for (const Interface& i : all)
      if (i.address == address && !i.loopback && !i.link_local) add_once(out, address);
  if (!out.empty()) return out;
  // A name may be one of the loopback interface here and not elsewhere; these are everywhere.
  if (master == "localhost" || is_loopback_address(master))
    return known.empty() ? std::vector<std::string>{"127.0.0.1"} : known;
  if (out = addresses_on(interface, all); !out.empty()) return out;
  std::set<std::string> names;
  for (const Interface& i : all)
    if (!i.loopback && !i.link_local) names.insert(i.name);
  if (names.size() == 1) return addresses_on(*names.begin(), all);
  if (resolved) return {};
  throw Error(
      ErrorCode::rendezvous_failed,
      "rank 0 cannot tell at which address to listen: the name " + master +
          " is not answered for within 5 s, and there are several interfaces: " + list_of(all))
      .key("dist_env.interface")
      .help("set MASTER_ADDR, on all ranks, to a numeric address of rank 0's host")
      .help("or set dist_env.interface to the interface that joins the hosts");
}

std::vector<std::string> addresses_to_open(const launch::RankEnvironment& ranks,
                                           const std::string& interface) {
  return addresses_to_open(ranks.master_addr, resolve(ranks.master_addr),
                           wanted_interface(interface).name, interfaces());
}

OpenListeners open_listeners(const launch::RankEnvironment& ranks, const std::string& interface) {
  const std::string loopback = "127.0.0.1";
  if (ranks.listen_fd >= 0) return {{ranks.listen_fd}, loopback};
  if (ranks.one_host()) return {{listen_on(ranks.master_port, /*loopback_only=*/true)}, loopback};
  const std::optional<std::vector<std::string>> resolved = resolve(ranks.master_addr);
  const std::vector<std::string> wanted = addresses_to_open(
      ranks.master_addr, resolved, wanted_interface(interface).name, interfaces());
  if (wanted.empty())
    return {{listen_on(ranks.master_port, /*loopback_only=*/false)}, loopback, true};
  OpenListeners out{{}, wanted[0]};
  try {
    for (const std::string& address : wanted)
      out.sockets.push_back(listen_at(address, ranks.master_port));
  } catch (const Error&) {
    for (int fd : out.sockets) ::close(fd);
    throw;
  }
  // Ranks of this host may know it by a name of the loopback interface: Debian's 127.0.1.1.
  std::vector<std::string> own{loopback};
  if (resolved)
    for (const std::string& address : *resolved)
      if (is_loopback_address(address)) add_once(own, address);
  for (const std::string& address : own) {
    if (std::find(wanted.begin(), wanted.end(), address) != wanted.end()) continue;
    try {
      out.sockets.push_back(listen_at(address, ranks.master_port));
    } catch (const Error&) {  // another program has the port there, and the ranks do without
      continue;
    }
    if (address == loopback) out.own = loopback;
  }
  return out;
}

OpenListeners listeners_at(const std::vector<std::string>& addresses,
                           const launch::PortRange& ports) {
  OpenListeners out{{listen_at(addresses.at(0), ports)}, addresses[0]};
  const int port = bound_port(out.sockets[0]);
  auto listens = [&](const std::string& address) {
    try {
      out.sockets.push_back(listen_at(address, port));
      return true;
    } catch (const Error&) {  // another program has the port there, or there is no such address
      return false;
    }
  };
  for (size_t i = 1; i < addresses.size(); ++i) listens(addresses[i]);
  for (const char* loopback : {"127.0.0.1", "::1"}) {
    if (std::find(addresses.begin(), addresses.end(), loopback) != addresses.end()) break;
    if (!listens(loopback)) continue;
    out.local = loopback;
    break;
  }
  return out;
}

OpenListeners open_listeners_beside(const launch::RankEnvironment& ranks,
                                    const std::string& interface, const std::string& here) {
  const std::string loopback = "127.0.0.1";
  if (ranks.one_host()) return {{listen_on(ranks.ports, /*loopback_only=*/true)}, loopback};
  const bool of_use = !here.empty() && !is_loopback_address(here) && !here.starts_with("fe80:");
  std::vector<std::string> wanted;
  try {
    wanted = addresses_to_open(ranks, interface);
  } catch (const Error&) {  // a name that nobody answers for; the way to the agent is known
    if (!of_use || !interface.empty()) throw;
  }
  // An interface may have several addresses; by this one the agent is reached.
  const bool among = std::find(wanted.begin(), wanted.end(), here) != wanted.end();
  if (of_use && (wanted.empty() || among)) wanted = {here};
  if (wanted.empty()) return {{listen_on(ranks.ports, /*loopback_only=*/false)}, loopback, true};
  return listeners_at(wanted, ranks.ports);
}

}  // namespace meshwright::rendezvous
