#include "engine/rendezvous/doors.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

#include "engine/rendezvous/connectivity.h"
#include "engine/rendezvous/interfaces.h"
#include "meshwright/error.h"

namespace meshwright::rendezvous {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kGreeting = "meshwright seat ";

bool lower(const Seat& a, const Seat& b) {
  auto bytes = [](const Seat& seat) {
    std::string out;
    std::optional<SocketAddress> address = socket_address(seat.address, 0);
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

// Binds to a free port of the range; false: there is none.
template <class Address>
bool bind_in(const launch::PortRange& ports, int fd, Address address, in_port_t Address::* port) {
  for (int number : ports_to_try(ports)) {
    address.*port = htons(static_cast<uint16_t>(number));
    if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return true;
  }
  return false;
}

}  // namespace

Doors::Doors(const std::string& address, const launch::PortRange& ports)
    : tcp_(address.empty() ? listen_on(ports, /*loopback_only=*/false)
                           : listen_at(address, ports)) {
  tcp_port_ = bound_port(tcp_);
  udp_ = ::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  int off = 0;
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  udp_is_v6_ = udp_ >= 0 && ::setsockopt(udp_, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0 &&
               bind_in(ports, udp_, six, &sockaddr_in6::sin6_port);
  if (!udp_is_v6_) {
    if (udp_ >= 0) ::close(udp_);
    udp_ = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_in four{};
    four.sin_family = AF_INET;
    // Without it nothing is lost but the direction in an error.
    if (udp_ >= 0 && !bind_in(ports, udp_, four, &sockaddr_in::sin_port)) {
      ::close(udp_);
      udp_ = -1;
    }
  }
  if (udp_ >= 0) udp_port_ = bound_port(udp_);
}

Doors::~Doors() {
  ::close(tcp_);
  if (udp_ >= 0) ::close(udp_);
}

void Doors::greet(const std::vector<Seat>& seats, size_t me) {
  std::string text = std::string(kGreeting) + std::to_string(me);
  for (size_t i = 0; i < seats.size(); ++i) {
    if (i == me || seats[i].udp_port == 0 || udp_ < 0) continue;
    bool four = seats[i].address.find(':') == std::string::npos;
    std::optional<SocketAddress> to =
        socket_address((udp_is_v6_ && four ? "::ffff:" : "") + seats[i].address, seats[i].udp_port);
    if (to) ::sendto(udp_, text.data(), text.size(), MSG_NOSIGNAL, to->get(), to->size);
  }
}

std::vector<Doors::Refused> Doors::knock(const std::vector<Seat>& seats, size_t me,
                                         Clock::time_point end) {
  std::vector<Refused> out;
  std::vector<pollfd> open;
  std::vector<size_t> to;
  for (size_t i = 0; i < seats.size(); ++i) {
    if (i == me || !lower(seats[i], seats[me])) continue;
    std::optional<SocketAddress> there = socket_address(seats[i].address, seats[i].tcp_port);
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
  greet(seats, me);
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
      greet(seats, me);
    }
  }
  for (size_t i = 0; i < open.size(); ++i) {
    out.push_back({to[i], std::strerror(ETIMEDOUT)});
    ::close(open[i].fd);
  }
  std::sort(out.begin(), out.end(), [](const Refused& a, const Refused& b) { return a.to < b.to; });
  return out;
}

std::vector<bool> Doors::heard(size_t seats) {
  std::vector<bool> out(seats, false);
  char buffer[64];
  for (ssize_t got; udp_ >= 0 && (got = ::recv(udp_, buffer, sizeof buffer, MSG_DONTWAIT)) >= 0;) {
    std::string_view text(buffer, static_cast<size_t>(got));
    if (!text.starts_with(kGreeting)) continue;
    text.remove_prefix(kGreeting.size());
    size_t seat = seats;
    auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), seat);
    if (error == std::errc() && stop == text.data() + text.size() && seat < seats) out[seat] = true;
  }
  return out;
}

}  // namespace meshwright::rendezvous
