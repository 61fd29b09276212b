#include "engine/launch/rendezvous/connectivity.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "engine/launch/rendezvous/deadlines.h"
#include "engine/launch/rendezvous/notices.h"
#include "meshwright/error.h"

namespace meshwright::rendezvous {

namespace {

bool is_v6(const std::string& address) { return address.find(':') != std::string::npos; }

}  // namespace

std::string numeric(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
                sizeof text);
  } else if (address->sa_family == AF_INET6) {
    const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    // A socket for both families sees IPv4 addresses inside IPv6's.
    if (IN6_IS_ADDR_V4MAPPED(&six))
      ::inet_ntop(AF_INET, &six.s6_addr[12], text, sizeof text);
    else
      ::inet_ntop(AF_INET6, &six, text, sizeof text);
  }
  return text;
}

namespace {

using NameOf = int (*)(int, sockaddr*, socklen_t*);
SocketEnd end_of(int fd, NameOf name_of) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (name_of(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  const in_port_t port = address.ss_family == AF_INET
                             ? reinterpret_cast<const sockaddr_in&>(address).sin_port
                             : reinterpret_cast<const sockaddr_in6&>(address).sin6_port;
  return {numeric(reinterpret_cast<sockaddr*>(&address)), ntohs(port)};
}

}  // namespace

SocketEnd local_end(int fd) { return end_of(fd, ::getsockname); }
SocketEnd remote_end(int fd) { return end_of(fd, ::getpeername); }

std::optional<SocketAddress> socket_address(const std::string& numeric_address, int port) {
  SocketAddress out;
  sockaddr_in four{};
  sockaddr_in6 six{};
  if (::inet_pton(AF_INET, numeric_address.c_str(), &four.sin_addr) == 1) {
    four.sin_family = AF_INET;
    four.sin_port = htons(static_cast<uint16_t>(port));
    *reinterpret_cast<sockaddr_in*>(&out.storage) = four;
    out.size = sizeof four;
  } else if (::inet_pton(AF_INET6, numeric_address.c_str(), &six.sin6_addr) == 1) {
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(static_cast<uint16_t>(port));
    *reinterpret_cast<sockaddr_in6*>(&out.storage) = six;
    out.size = sizeof six;
  } else {
    return std::nullopt;
  }
  return out;
}

bool is_loopback_address(const std::string& numeric_address) {
  return numeric_address.starts_with("127.") || numeric_address == "::1";
}

bool is_of_this_host(const std::string& numeric_address) {
  const std::vector<Interface> all = interfaces();
  return std::any_of(all.begin(), all.end(),
                     [&](const Interface& i) { return i.address == numeric_address; });
}

std::vector<Interface> interfaces() {
  std::vector<Interface> out;
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return out;
  std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> all(found, ::freeifaddrs);
  for (const ifaddrs* i = all.get(); i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    std::string address = numeric(i->ifa_addr);
    if (address.empty()) continue;
    bool link_local =
        i->ifa_addr->sa_family == AF_INET6 &&
        IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr);
    out.push_back({i->ifa_name, address, (i->ifa_flags & IFF_LOOPBACK) != 0, link_local});
  }
  std::stable_sort(out.begin(), out.end(), [](const Interface& a, const Interface& b) {
    return !is_v6(a.address) && is_v6(b.address);
  });
  return out;
}

std::string list_of(const std::vector<Interface>& all) {
  std::vector<std::pair<std::string, std::string>> names;
  for (const Interface& i : all) {
    auto known =
        std::find_if(names.begin(), names.end(), [&](const auto& n) { return n.first == i.name; });
    if (known == names.end())
      names.emplace_back(i.name, i.address);
    else
      known->second += ", " + i.address;
  }
  std::string out;
  for (const auto& [name, addresses] : names)
    out.append(out.empty() ? "" : ", ").append(name).append(" (").append(addresses).append(")");
  return out.empty() ? "none that is up" : out;
}

std::string address_of(const std::string& name, const std::string& named_by,
                       const std::vector<Interface>& all) {
  const Interface* useless = nullptr;
  for (const Interface& i : all) {
    if (i.name != name) continue;
    if (!i.link_local) return i.address;
    useless = &i;
  }
  std::string what = useless ? "has no address but the link-local " + useless->address +
                                   ", which is of no use to other hosts"
                             : "is not an interface of this host that is up and has an address";
  throw Error(ErrorCode::bad_interface,
              named_by + " = \"" + name + "\" " + what + "; there are: " + list_of(all))
      .key("dist_env.interface")
      .help(
          "set it to the interface that leads to the other hosts; GLOO_SOCKET_IFNAME can differ "
          "from host to host")
      .help(
          "set dist_env.interface = \"auto\" and leave GLOO_SOCKET_IFNAME unset: the route to "
          "MASTER_ADDR decides");
}

std::string source_for(const std::string& numeric_address) {
  std::optional<SocketAddress> there = socket_address(numeric_address, 9);  // nothing is sent
  if (!there) return "";
  const int fd = ::socket(there->storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "";
  std::string out;
  if (::connect(fd, there->get(), there->size) == 0) out = local_end(fd).address;
  ::close(fd);
  return out;
}

std::vector<OwnSocket> own_sockets() {
  std::vector<OwnSocket> out;
  std::error_code failed;
  for (std::filesystem::directory_iterator file("/proc/self/fd", failed), none;
       !failed && file != none; file.increment(failed)) {
    const int fd = std::atoi(file->path().filename().c_str());
    int type = 0, listens = 0;
    socklen_t size = sizeof type;
    if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_STREAM ||
        ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0)
      continue;
    OwnSocket own{fd, local_end(fd), remote_end(fd)};
    if (!own.local.address.empty() && own.listens() == (listens != 0))
      out.push_back(std::move(own));
  }
  return out;
}

bool shut(const std::string& address, int port) {
  // A filter of packets that lets none pass: a listening socket's sees what opens connections, and
  // not what goes over those that were accepted before (man 7 socket, SO_ATTACH_FILTER).
  sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program{1, &nothing};
  bool found = false;
  for (const OwnSocket& own : own_sockets()) {
    if (!own.listens() || own.local != SocketEnd{address, port}) continue;
    if (::setsockopt(own.fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) != 0)
      return false;
    found = true;
  }
  return found;
}

namespace {

using Clock = std::chrono::steady_clock;

// 0, or the reason in errno's terms; -1 where the machine has no such family or address.
int try_at(const std::string& address, int port, int& fd) {
  if (address == kAllInterfaces) {
    const int reason = try_at("::", port, fd);
    return reason == -1 ? try_at("0.0.0.0", port, fd) : reason;
  }
  const std::optional<SocketAddress> here = socket_address(address, port);
  if (!here) return -1;
  const int family = here->storage.ss_family;
  fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno == EAFNOSUPPORT ? -1 : errno;
  int on = 1, off = 0;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  keep_alive(fd);
  if (family == AF_INET6) ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(fd, here->get(), here->size) == 0 && ::listen(fd, 4096) == 0) return 0;
  const int reason = errno;
  ::close(fd);
  return reason == EADDRNOTAVAIL ? -1 : reason;
}

// Before a port.
std::string with_colon(const std::string& address) {
  if (address == kAllInterfaces) return "port ";
  return is_v6(address) ? "[" + address + "]:" : address + ":";
}

[[noreturn]] void cannot_listen(const std::string& address, int port, int reason) {
  Error error(ErrorCode::rendezvous_failed,
              "rank 0 cannot listen on " + with_colon(address) + std::to_string(port) + ": " +
                  (reason == -1 ? "this machine has no such address" : std::strerror(reason)));
  if (reason == EADDRINUSE)
    error
        .help(
            "set MASTER_PORT, on all ranks, to a port that no other program has (ss -ltnp shows "
            "who has it)")
        .help("or two processes have RANK 0: give each rank its own number");
  if (reason == EACCES)
    error.help("ports below 1024 are reserved: set MASTER_PORT to a higher one, on all ranks");
  throw error.help(
      "or let `meshwright train FILE --nproc N` start the ranks: it finds a free port");
}

}  // namespace

void keep_alive(int fd, std::chrono::milliseconds timeout) {
  const int on = 1;
  const KeepAlive times = keep_alive_times(timeout);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &times.idle_s, sizeof times.idle_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &times.between_s, sizeof times.between_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times.times, sizeof times.times);
}

int listen_at(const std::string& address, int port) {
  int fd = -1;
  const int reason = try_at(address, port, fd);
  if (reason == 0) return fd;
  cannot_listen(address, port, reason);
}

std::vector<int> ports_to_try(const launch::PortRange& ports) {
  if (!ports.limited()) return {0};
  std::vector<int> out;
  const launch::PortRange half = ports.for_others();
  const auto count = static_cast<unsigned>(half.count());
  const unsigned begin = std::random_device()() % count;
  for (unsigned i = 0; i < count; ++i)
    out.push_back(half.first + static_cast<int>((begin + i) % count));
  return out;
}

int listen_at(const std::string& address, const launch::PortRange& ports) {
  for (int port : ports_to_try(ports)) {
    int fd = -1;
    const int reason = try_at(address, port, fd);
    if (reason == 0) return fd;
    if (!ports.limited() || (reason != EADDRINUSE && reason != EACCES))
      cannot_listen(address, port, reason);
  }
  auto written = [](const launch::PortRange& range) {
    return std::to_string(range.first) + "-" + std::to_string(range.last);
  };
  const launch::PortRange tried = ports.for_others();
  std::string range = "MESHWRIGHT_PORT_RANGE = " + written(ports);
  if (tried.count() < ports.count()) range = written(tried) + " (the second half of " + range + ")";
  throw Error(ErrorCode::rendezvous_failed,
              "no port of " + range + " is free on " +
                  (address == kAllInterfaces ? "all interfaces" : address))
      .help(
          "widen MESHWRIGHT_PORT_RANGE, on all ranks: one rank of each host takes one port for a "
          "moment, rank 0 two more for as long as it runs (ss -ltnp shows who has them)");
}

namespace {

// 0, or the reason in errno's terms.
int try_to_connect(const addrinfo& address, Clock::time_point end, int& fd) {
  fd = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno;
  int reason = ::connect(fd, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (reason == EINPROGRESS) {
    pollfd ready{fd, POLLOUT, 0};
    reason = ETIMEDOUT;
    socklen_t size = sizeof reason;
    const int64_t left = std::min<int64_t>(left_until(end).count(), 1 << 30);
    if (::poll(&ready, 1, static_cast<int>(left)) > 0)
      ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &reason, &size);
  }
  if (reason == 0)
    keep_alive(fd);
  else
    ::close(std::exchange(fd, -1));
  return reason;
}

// Why there are none, else empty.
using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;
std::string look_up(const std::string& host, const char* port, Addresses& out) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  const int failed = ::getaddrinfo(host.c_str(), port, &hints, &found);
  out.reset(found);
  if (failed == 0) return "";
  return failed == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(failed);
}

}  // namespace

int connect_to(const std::string& host, int port, Clock::time_point end, std::string* why) {
  for (;;) {
    Addresses addresses(nullptr, ::freeaddrinfo);
    std::string problem = look_up(host, std::to_string(port).c_str(), addresses);
    for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
      int fd = -1;
      const int reason = try_to_connect(*a, end, fd);
      if (reason == 0) return fd;
      problem = std::strerror(reason);
    }
    if (why != nullptr) *why = problem;
    // Names come up late too, where hosts are started together with the ranks.
    if (Clock::now() + Milliseconds(200) >= end) return -1;
    std::this_thread::sleep_for(Milliseconds(200));
  }
}

Route route_to_master(const launch::RankEnvironment& ranks, Clock::time_point end) {
  return in_time(left_until(end) + Milliseconds(500),
                 [host = ranks.master_addr, port = ranks.master_port, end]() -> Route {
                   const int fd = connect_to(host, port, end);
                   if (fd < 0) return {};
                   Route out{local_end(fd).address, remote_end(fd).address};
                   ::close(fd);
                   return out;
                 })
      .value_or(Route());
}

WantedInterface wanted_interface(const std::string& key) {
  const char* variable = std::getenv("GLOO_SOCKET_IFNAME");
  if (variable && *variable) return {variable, "GLOO_SOCKET_IFNAME"};
  return {key, "dist_env.interface"};
}

namespace {

void add_once(std::vector<std::string>& all, const std::string& one) {
  if (std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
}

// nullopt: there is no answer, not even that nobody has that name.
std::optional<std::vector<std::string>> resolve(const std::string& name) {
  return in_time(std::chrono::seconds(5), [name] {
    std::vector<std::string> out;
    Addresses addresses(nullptr, ::freeaddrinfo);
    look_up(name, nullptr, addresses);
    for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next)
      if (const std::string address = numeric(a->ai_addr); !address.empty()) add_once(out, address);
    return out;
  });
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
    return known.empty() ? std::vector<std::string>{kLoopback} : known;
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

OpenListeners open_listeners(const launch::RankEnvironment& ranks, const std::string& interface) {
  if (ranks.listen_fd >= 0) return {{ranks.listen_fd}, kLoopback};
  if (ranks.one_host()) return {{listen_at(kLoopback, ranks.master_port)}, kLoopback};
  const std::optional<std::vector<std::string>> resolved = resolve(ranks.master_addr);
  const std::vector<std::string> wanted = addresses_to_open(
      ranks.master_addr, resolved, wanted_interface(interface).name, interfaces());
  if (wanted.empty()) return {{listen_at(kAllInterfaces, ranks.master_port)}, kLoopback, true};
  OpenListeners out{{}, wanted[0]};
  try {
    for (const std::string& address : wanted)
      out.sockets.push_back(listen_at(address, ranks.master_port));
  } catch (const Error&) {
    for (int fd : out.sockets) ::close(fd);
    throw;
  }
  // Ranks of this host may know it by a name of the loopback interface: Debian's 127.0.1.1.
  std::vector<std::string> own{kLoopback};
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
    if (address == kLoopback) out.own = kLoopback;
  }
  return out;
}

OpenListeners listeners_at(const std::vector<std::string>& addresses,
                           const launch::PortRange& ports) {
  OpenListeners out{{listen_at(addresses.at(0), ports)}, addresses[0]};
  const int port = local_end(out.sockets[0]).port;
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
  if (ranks.one_host()) return {{listen_at(kLoopback, ranks.ports)}, kLoopback};
  const bool of_use = !here.empty() && !is_loopback_address(here) && !here.starts_with("fe80:");
  std::vector<std::string> wanted;
  try {
    wanted = addresses_to_open(ranks.master_addr, resolve(ranks.master_addr),
                               wanted_interface(interface).name, interfaces());
  } catch (const Error&) {  // a name that nobody answers for; the way to the agent is known
    if (!of_use || !interface.empty()) throw;
  }
  // An interface may have several addresses; by this one the agent is reached.
  const bool among = std::find(wanted.begin(), wanted.end(), here) != wanted.end();
  if (of_use && (wanted.empty() || among)) wanted = {here};
  if (wanted.empty()) return {{listen_at(kAllInterfaces, ranks.ports)}, kLoopback, true};
  return listeners_at(wanted, ranks.ports);
}

}  // namespace meshwright::rendezvous
