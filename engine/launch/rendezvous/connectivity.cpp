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
#include <thread>

#include "engine/launch/rendezvous/bounded.h"
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

int port_of(const sockaddr* address) {
  if (address->sa_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in*>(address)->sin_port);
  return address->sa_family == AF_INET6
             ? ntohs(reinterpret_cast<const sockaddr_in6*>(address)->sin6_port)
             : 0;
}

int bound_port(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0
             ? port_of(reinterpret_cast<sockaddr*>(&address))
             : 0;
}

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
  for (const auto& [name, addresses] : names) {
    out += out.empty() ? "" : ", ";
    out += name;
    out += " (" + addresses + ")";
  }
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
  int fd = ::socket(there->storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "";
  sockaddr_storage local{};
  socklen_t size = sizeof local;
  std::string out;
  if (::connect(fd, there->get(), there->size) == 0 &&
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) == 0)
    out = numeric(reinterpret_cast<sockaddr*>(&local));
  ::close(fd);
  return out;
}

std::vector<OwnSocket> own_sockets() {
  std::vector<OwnSocket> out;
  std::error_code failed;
  for (std::filesystem::directory_iterator file("/proc/self/fd", failed), none;
       !failed && file != none; file.increment(failed)) {
    int fd = std::atoi(file->path().filename().c_str()), type = 0, listens = 0;
    sockaddr_storage local{}, remote{};
    socklen_t type_size = sizeof type, listens_size = sizeof listens, local_size = sizeof local,
              remote_size = sizeof remote;
    if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_size) != 0 || type != SOCK_STREAM)
      continue;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &listens_size) != 0) continue;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &local_size) != 0) continue;
    OwnSocket own;
    own.fd = fd;
    own.local = numeric(reinterpret_cast<sockaddr*>(&local));
    own.local_port = port_of(reinterpret_cast<sockaddr*>(&local));
    if (listens == 0) {
      if (::getpeername(fd, reinterpret_cast<sockaddr*>(&remote), &remote_size) != 0) continue;
      own.remote = numeric(reinterpret_cast<sockaddr*>(&remote));
      own.remote_port = port_of(reinterpret_cast<sockaddr*>(&remote));
      if (own.remote.empty()) continue;
    }
    if (!own.local.empty()) out.push_back(std::move(own));
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
    if (!own.listens() || own.local != address || own.local_port != port) continue;
    if (::setsockopt(own.fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) != 0)
      return false;
    found = true;
  }
  return found;
}

namespace {

using Clock = std::chrono::steady_clock;

// 0, or the reason in errno's terms; -1 where the machine has no such family.
int try_to_listen(int family, const sockaddr* address, socklen_t size, int& fd) {
  fd = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno == EAFNOSUPPORT ? -1 : errno;
  int on = 1, off = 0;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  keep_alive(fd);
  if (family == AF_INET6) ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(fd, address, size) == 0 && ::listen(fd, 4096) == 0) return 0;
  int reason = errno;
  ::close(fd);
  return reason == EADDRNOTAVAIL ? -1 : reason;
}

// Empty, or why not. `kept`: where the connection goes, which is closed otherwise.
std::string try_to_connect(const addrinfo& address, Clock::time_point end, Route* route,
                           int* kept) {
  int fd = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return std::strerror(errno);
  int reason = ::connect(fd, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (reason == EINPROGRESS) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    pollfd ready{fd, POLLOUT, 0};
    reason = ETIMEDOUT;
    socklen_t size = sizeof reason;
    if (::poll(&ready, 1, static_cast<int>(std::clamp<int64_t>(left, 1, 1 << 30))) > 0)
      ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &reason, &size);
  }
  if (reason == 0 && route != nullptr) {
    sockaddr_storage local{}, remote{};
    socklen_t local_size = sizeof local, remote_size = sizeof remote;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &local_size) == 0 &&
        ::getpeername(fd, reinterpret_cast<sockaddr*>(&remote), &remote_size) == 0)
      *route = {numeric(reinterpret_cast<sockaddr*>(&local)),
                numeric(reinterpret_cast<sockaddr*>(&remote))};
  }
  if (reason == 0 && kept != nullptr) {
    keep_alive(fd);
    *kept = fd;
  } else {
    ::close(fd);
  }
  return reason == 0 ? "" : std::strerror(reason);
}

[[noreturn]] void cannot_listen(const std::string& where, int port, int reason) {
  Error error(ErrorCode::rendezvous_failed,
              "rank 0 cannot listen on " + where + std::to_string(port) + ": " +
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

// As try_to_listen().
int try_on(int port, bool loopback_only, int& fd) {
  int reason = -1;
  if (!loopback_only) {
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_port = htons(static_cast<uint16_t>(port));
    any.sin6_addr = in6addr_any;
    reason = try_to_listen(AF_INET6, reinterpret_cast<sockaddr*>(&any), sizeof any, fd);
  }
  if (reason == -1) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(loopback_only ? INADDR_LOOPBACK : INADDR_ANY);
    reason = try_to_listen(AF_INET, reinterpret_cast<sockaddr*>(&address), sizeof address, fd);
  }
  return reason;
}
int try_at(const std::string& address, int port, int& fd) {
  std::optional<SocketAddress> here = socket_address(address, port);
  return here ? try_to_listen(here->storage.ss_family, here->get(), here->size, fd) : -1;
}

// Before a port.
std::string with_colon(const std::string& address) {
  return address.find(':') != std::string::npos ? "[" + address + "]:" : address + ":";
}

// The first that is free. `before_port` as in cannot_listen().
template <class Try>
int listen_in(const launch::PortRange& ports, const std::string& before_port,
              const std::string& where, Try&& try_port) {
  for (int port : ports_to_try(ports)) {
    int fd = -1;
    const int reason = try_port(port, fd);
    if (reason == 0) return fd;
    if (!ports.limited() || (reason != EADDRINUSE && reason != EACCES))
      cannot_listen(before_port, port, reason);
  }
  auto written = [](const launch::PortRange& range) {
    return std::to_string(range.first) + "-" + std::to_string(range.last);
  };
  const launch::PortRange tried = ports.for_others();
  std::string range = "MESHWRIGHT_PORT_RANGE = " + written(ports);
  if (tried.count() < ports.count()) range = written(tried) + " (the second half of " + range + ")";
  throw Error(ErrorCode::rendezvous_failed, "no port of " + range + " is free on " + where)
      .help(
          "widen MESHWRIGHT_PORT_RANGE, on all ranks: one rank of each host takes one port for a "
          "moment, rank 0 two more for as long as it runs (ss -ltnp shows who has them)");
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

int listen_on(int port, bool loopback_only) {
  int fd = -1;
  const int reason = try_on(port, loopback_only, fd);
  if (reason == 0) return fd;
  cannot_listen(loopback_only ? "127.0.0.1:" : "port ", port, reason);
}

int listen_at(const std::string& address, int port) {
  int fd = -1;
  const int reason = try_at(address, port, fd);
  if (reason == 0) return fd;
  cannot_listen(with_colon(address), port, reason);
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

int listen_on(const launch::PortRange& ports, bool loopback_only) {
  return listen_in(ports, loopback_only ? "127.0.0.1:" : "port ",
                   loopback_only ? "127.0.0.1" : "all interfaces",
                   [&](int port, int& fd) { return try_on(port, loopback_only, fd); });
}

int listen_at(const std::string& address, const launch::PortRange& ports) {
  return listen_in(ports, with_colon(address), address,
                   [&](int port, int& fd) { return try_at(address, port, fd); });
}

namespace {

std::string try_any(const std::string& host, int port, Clock::time_point end, Route* route,
                    int* kept) {
  for (;;) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    std::string why;
    int failed = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
    if (failed != 0) why = failed == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(failed);
    for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
      why = try_to_connect(*a, end, route, kept);
      if (why.empty()) return "";
    }
    // Names come up late too, where hosts are started together with the ranks.
    if (Clock::now() + std::chrono::milliseconds(200) >= end) return why;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

}  // namespace

std::string try_connect(const std::string& host, int port, Clock::time_point end, Route* route) {
  return try_any(host, port, end, route, nullptr);
}

Route route_to_master(const launch::RankEnvironment& ranks, Clock::time_point end) {
  try {
    return bounded(left_until(end) + Milliseconds(500),
                   [host = ranks.master_addr, port = ranks.master_port, end] {
                     Route out;
                     try_connect(host, port, end, &out);
                     return out;
                   });
  } catch (const NoAnswer&) {
    return {};
  }
}

int connect_to(const std::string& host, int port, Clock::time_point end, std::string* why) {
  int out = -1;
  const std::string reason = try_any(host, port, end, nullptr, &out);
  if (why != nullptr) *why = reason;
  return out;
}

}  // namespace meshwright::rendezvous
