#include "engine/launch/rendezvous/reachability.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

#include "engine/launch/rendezvous/connectivity.h"
#include "engine/launch/rendezvous/interfaces.h"
#include "meshwright/error.h"

namespace meshwright::rendezvous {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kGreeting = "meshwright endpoint ";

bool lower(const Endpoint& a, const Endpoint& b) {
  auto bytes = [](const Endpoint& endpoint) {
    std::string out;
    std::optional<SocketAddress> address = socket_address(endpoint.address, 0);
    if (!address) return out;
    if (address->storage.ss_family == AF_INET) {
      const in_addr& four = reinterpret_cast<const sockaddr_in*>(&address->storage)->sin_addr;
      out.assign(reinterpret_cast<const char*>(&four), sizeof four);
    } else {
      const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(&address->storage)->sin6_addr;
      out.assign(reinterpret_cast<const char*>(&six), sizeof six);
    }
    return out;
  };
  return bytes(a) < bytes(b);
}

// Binds to a free port of the range at that address; false: there is none.
bool bind_in(const launch::PortRange& ports, int fd, const std::string& address) {
  for (int number : ports_to_try(ports)) {
    std::optional<SocketAddress> here = socket_address(address, number);
    if (here && ::bind(fd, here->get(), here->size) == 0) return true;
  }
  return false;
}

// A socket for packets at that address; -1: none is to be had. `is_v6`: it has IPv4 addresses as
// parts of IPv6's.
int packets_at(const launch::PortRange& ports, const std::string& address, bool& is_v6) {
  const bool four = address.find(':') == std::string::npos;
  int fd = ::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), off = 0;
  is_v6 = fd >= 0 && ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0 &&
          bind_in(ports, fd, (four ? "::ffff:" : "") + address);
  if (is_v6) return fd;
  if (fd >= 0) ::close(fd);
  if (!four) return -1;
  fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0 || bind_in(ports, fd, address)) return fd;
  ::close(fd);
  return -1;
}

}  // namespace

ReachabilityProbe::ReachabilityProbe(const std::string& address, const launch::PortRange& ports)
    : tcp_(listen_at(address, ports)) {
  tcp_port_ = bound_port(tcp_);
  // Without it nothing is lost but the direction in an error.
  udp_ = packets_at(ports, address, udp_is_v6_);
  if (udp_ >= 0) udp_port_ = bound_port(udp_);
  stop_ = ::eventfd(0, EFD_CLOEXEC);
  if (stop_ < 0 || ::fcntl(tcp_, F_SETFL, O_NONBLOCK) != 0) return;
  listener_ = std::thread([this] { let_in(); });
}

ReachabilityProbe::~ReachabilityProbe() {
  if (listener_.joinable()) {
    ::eventfd_write(stop_, 1);
    listener_.join();
  }
  ::close(tcp_);
  if (udp_ >= 0) ::close(udp_);
  if (stop_ >= 0) ::close(stop_);
}

void ReachabilityProbe::let_in() const {
  std::array<pollfd, 2> both{{{tcp_, POLLIN, 0}, {stop_, POLLIN, 0}}};
  while (::poll(both.data(), both.size(), -1) >= 0 || errno == EINTR) {
    if (both[1].revents != 0) return;
    if (both[0].revents == 0) continue;
    const int fd = ::accept4(tcp_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0)
      ::close(fd);
    else if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // no descriptor is free
  }
}

void ReachabilityProbe::greet(const std::vector<Endpoint>& endpoints, size_t me) {
  std::string text = std::string(kGreeting) + std::to_string(me);
  for (size_t i = 0; i < endpoints.size(); ++i) {
    if (i == me || endpoints[i].udp_port == 0 || udp_ < 0) continue;
    bool four = endpoints[i].address.find(':') == std::string::npos;
    std::optional<SocketAddress> to = socket_address(
        (udp_is_v6_ && four ? "::ffff:" : "") + endpoints[i].address, endpoints[i].udp_port);
    if (to) ::sendto(udp_, text.data(), text.size(), MSG_NOSIGNAL, to->get(), to->size);
  }
}

std::vector<ReachabilityProbe::Refused> ReachabilityProbe::probe(
    const std::vector<Endpoint>& endpoints, size_t me, Clock::time_point end) {
  std::vector<Refused> out;
  std::vector<pollfd> open;
  std::vector<size_t> to;
  for (size_t i = 0; i < endpoints.size(); ++i) {
    if (i == me || !lower(endpoints[i], endpoints[me])) continue;
    std::optional<SocketAddress> there =
        socket_address(endpoints[i].address, endpoints[i].tcp_port);
    int fd = there
                 ? ::socket(there->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)
                 : -1;
    int reason = fd < 0 ? errno : ::connect(fd, there->get(), there->size) == 0 ? 0 : errno;
    if (fd >= 0 && reason == EINPROGRESS) {
      open.push_back({fd, POLLOUT, 0});
      to.push_back(i);
      continue;
    }
    if (reason != 0) out.push_back({i, std::strerror(reason)});
    if (fd >= 0) ::close(fd);
  }
  greet(endpoints, me);
  constexpr auto kAgain = std::chrono::milliseconds(500);
  for (Clock::time_point greeted = Clock::now(); !open.empty() && Clock::now() < end;) {
    ::poll(open.data(), open.size(), 100);
    for (size_t i = open.size(); i-- > 0;) {
      if (open[i].revents == 0) continue;
      int reason = 0;
      socklen_t size = sizeof reason;
      ::getsockopt(open[i].fd, SOL_SOCKET, SO_ERROR, &reason, &size);
      if (reason != 0) out.push_back({to[i], std::strerror(reason)});
      ::close(open[i].fd);
      open.erase(open.begin() + static_cast<ptrdiff_t>(i));
      to.erase(to.begin() + static_cast<ptrdiff_t>(i));
    }
    if (Clock::now() - greeted > kAgain) {
      greeted = Clock::now();
      greet(endpoints, me);
    }
  }
  for (size_t i = 0; i < open.size(); ++i) {
    out.push_back({to[i], std::strerror(ETIMEDOUT)});
    ::close(open[i].fd);
  }
  std::sort(out.begin(), out.end(), [](const Refused& a, const Refused& b) { return a.to < b.to; });
  return out;
}

std::vector<bool> ReachabilityProbe::heard(size_t endpoints) {
  std::vector<bool> out(endpoints, false);
  char buffer[64];
  for (ssize_t got; udp_ >= 0 && (got = ::recv(udp_, buffer, sizeof buffer, MSG_DONTWAIT)) >= 0;) {
    std::string_view text(buffer, static_cast<size_t>(got));
    if (!text.starts_with(kGreeting)) continue;
    text.remove_prefix(kGreeting.size());
    size_t endpoint = endpoints;
    auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), endpoint);
    if (error == std::errc() && stop == text.data() + text.size() && endpoint < endpoints)
      out[endpoint] = true;
  }
  return out;
}

}  // namespace meshwright::rendezvous
