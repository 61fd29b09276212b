#include "engine/launch/rendezvous/connectivity.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <thread>

#include "engine/launch/rendezvous/bounded.h"
#include "engine/launch/rendezvous/deadlines.h"
#include "engine/launch/rendezvous/interfaces.h"
#include "engine/launch/rendezvous/notices.h"
#include "meshwright/error.h"

namespace meshwright::rendezvous {

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
