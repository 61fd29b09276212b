#include "engine/launch/rendezvous/endpoints.h"

#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <tuple>
#include <utility>

#include "engine/launch/rendezvous/deadlines.h"
#include "engine/launch/rendezvous/error_exchange.h"
#include "engine/launch/rendezvous/notices.h"
#include "meshwright/error.h"
#include "sdk/base/host_facts.h"

namespace meshwright::rendezvous {

BOOST_DESCRIBE_STRUCT(Endpoint, (), (host, address))
BOOST_DESCRIBE_STRUCT(ReachabilityProbe::Refused, (), (to, why))

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostPairs = 4;

// What a rank knows of itself. `reached`: where it found the store; address empty: it knows no
// address that another host could use.
struct Row {
  Endpoint endpoint;
  std::string reached, problem;
};

BOOST_DESCRIBE_STRUCT(Row, (), (endpoint, reached, problem))

struct Table {
  std::vector<Endpoint> endpoints;
  std::string error;  // encode_error(): all ranks throw it
};
BOOST_DESCRIBE_STRUCT(Table, (), (endpoints, error))

std::string encode_with_key(Error error) { return encode_error(error.key("dist_env.interface")); }

const char* const kSetInterface =
    "set dist_env.interface, or GLOO_SOCKET_IFNAME on each host, to the interface that joins the "
    "hosts";

Row own_row(const launch::RankEnvironment& ranks, const WantedInterface& wanted,
            Clock::time_point end) {
  Row row;
  row.endpoint.host = host_name();
  if (!wanted.name.empty()) {
    try {
      row.endpoint.address = address_of(wanted.name, wanted.named_by, interfaces());
    } catch (const Error& error) {
      row.problem = error.message();
    }
    return row;
  }
  if (ranks.one_host()) {
    row.endpoint.address = "127.0.0.1";
    return row;
  }
  if (ranks.rank == 0 && !ranks.agent_store) return row;
  const Route route = route_to_master(ranks, end);
  if (route.local.empty() || is_loopback_address(route.local)) return row;
  row.endpoint.address = route.local;
  row.reached = route.remote;
  if (route.local.starts_with("fe80:"))
    row.problem = "the route to MASTER_ADDR = " + ranks.master_addr +
                  " begins at the link-local address " + route.local +
                  ", which is of no use to other hosts; there are: " + list_of(interfaces());
  return row;
}

std::string named(int64_t rank, const Endpoint& endpoint) {
  return "rank " + std::to_string(rank) + " on " + endpoint.host;
}
std::string with_address(int64_t rank, const Endpoint& endpoint) {
  return named(rank, endpoint) + " (" + endpoint.address + ")";
}

// Rank 0: the address of those that know none, itself mostly. They are on the host of the store.
std::string home_address(const std::vector<Row>& rows) {
  std::vector<Interface> here = interfaces();
  auto is_here = [&](const std::string& address) {
    return std::any_of(here.begin(), here.end(),
                       [&](const Interface& i) { return i.address == address; });
  };
  // What another host reached comes before what this host's own names say.
  for (bool other_host : {true, false})
    for (const Row& row : rows)
      if (!row.reached.empty() && (row.reached != row.endpoint.address) == other_host &&
          is_here(row.reached))
        return row.reached;
  for (const Row& row : rows)
    if (!row.endpoint.address.empty()) return source_for(row.endpoint.address);
  return "127.0.0.1";
}

std::vector<Endpoint> settle(const std::vector<Row>& rows, const launch::RankEnvironment& ranks) {
  std::vector<Endpoint> endpoints;
  std::string home = home_address(rows);
  bool several_hosts = false, loopback = false, four = false, six = false;
  for (size_t r = 0; r < rows.size(); ++r) {
    Endpoint endpoint = rows[r].endpoint;
    if (!rows[r].problem.empty())
      throw Error(ErrorCode::bad_interface,
                  named(static_cast<int64_t>(r), endpoint) + ": " + rows[r].problem)
          .help(kSetInterface);
    if (endpoint.address.empty()) endpoint.address = home;
    if (endpoint.address.empty())
      throw Error(ErrorCode::bad_interface, named(static_cast<int64_t>(r), endpoint) +
                                                ": MASTER_ADDR = " + ranks.master_addr +
                                                " is a name of the loopback interface there, and "
                                                "no route leads to the other hosts; there "
                                                "are: " +
                                                list_of(interfaces()))
          .help(kSetInterface);
    several_hosts = several_hosts || endpoint.host != rows[0].endpoint.host;
    loopback = loopback || is_loopback_address(endpoint.address);
    (endpoint.address.find(':') == std::string::npos ? four : six) = true;
    endpoints.push_back(std::move(endpoint));
  }
  auto first = [&](auto&& wanted) {
    auto found = std::find_if(endpoints.begin(), endpoints.end(), wanted);
    return with_address(found - endpoints.begin(), *found);
  };
  if (several_hosts && loopback)
    throw Error(ErrorCode::bad_interface,
                first([](const Endpoint& s) { return is_loopback_address(s.address); }) +
                    " would listen on the loopback interface, where " +
                    first([&](const Endpoint& s) { return s.host != endpoints[0].host; }) +
                    " cannot reach it")
        .help(kSetInterface)
        .help("set MASTER_ADDR to a name or address of rank 0's host that every host can reach");
  if (four && six)
    throw Error(ErrorCode::bad_interface,
                first([](const Endpoint& s) { return s.address.find(':') == std::string::npos; }) +
                    " has an IPv4 address and " + first([](const Endpoint& s) {
                      return s.address.find(':') != std::string::npos;
                    }) +
                    " an IPv6 one: they cannot connect")
        .help(
            "set MASTER_ADDR, on all ranks, to a numeric address of the family that all hosts have")
        .help(kSetInterface);
  return endpoints;
}

// One rank of each address, the lowest.
std::vector<int64_t> one_of_each_host(const std::vector<Endpoint>& endpoints) {
  std::vector<int64_t> out;
  std::vector<std::string> known;
  for (size_t r = 0; r < endpoints.size(); ++r) {
    if (std::find(known.begin(), known.end(), endpoints[r].address) != known.end()) continue;
    known.push_back(endpoints[r].address);
    out.push_back(static_cast<int64_t>(r));
  }
  return out;
}

// "rank 2 on c (10.70.0.3) cannot connect to rank 1 on b (10.70.0.2): Connection timed out; packets
// from ... are lost"
using Named = std::pair<std::string, std::string>;  // with its address, and that alone
std::string cause(const Named& from, const Named& to, const std::string& why, bool arrives,
                  bool comes_back) {
  const std::string &a = from.second, &b = to.second;
  const std::string out = from.first + " cannot connect to " + to.first + ": " + why + "; ";
  auto one_way = [&](const std::string& x, const std::string& y) {
    return out + "packets from " + x + " to " + y + " are lost, those from " + y + " to " + x +
           " arrive";
  };
  if (arrives && comes_back)
    return out + "other packets pass both ways, so a firewall refuses connections from " + a +
           " to " + b;
  if (arrives) return one_way(b, a);
  if (comes_back) return one_way(a, b);
  return out + "no packet passes in either direction";
}

// The endpoints of those that probe, with the ports of their listeners, as far as they have told
// until `end`: who has not is missed later, by name.
std::vector<Endpoint> with_ports(c10d::Store& store, const std::vector<int64_t>& probers,
                                 const std::vector<Endpoint>& endpoints, Clock::time_point end) {
  std::vector<std::string> keys;
  for (size_t i = 0; i < probers.size(); ++i) keys.push_back("listener/" + std::to_string(i));
  bool all = true;
  try {
    store.wait(keys, left_until(end));
  } catch (const c10::DistStoreError&) {
    all = false;
  }
  std::vector<std::vector<uint8_t>> texts(keys.size());
  if (all) texts = store.multiGet(keys);
  std::vector<Endpoint> out;
  for (size_t i = 0; i < keys.size(); ++i) {
    out.push_back(endpoints[static_cast<size_t>(probers[i])]);
    if (!all && store.check({keys[i]})) texts[i] = store.get(keys[i]);
    if (texts[i].empty()) continue;
    std::tie(out.back().tcp_port, out.back().udp_port) = told<std::pair<uint16_t, uint16_t>>(
        text_of(texts[i]), "endpoints/" + keys[i], "rank " + std::to_string(probers[i]));
  }
  return out;
}

// Collective. Rank 0 is the first of those that probe, and collects what they found. A listener is
// at the address that the others are told, and only those that probe have one: of many ranks of a
// host none takes a port from the others.
void try_pairs(c10d::Store& store, int64_t rank, const std::vector<Endpoint>& endpoints,
               const launch::PortRange& ports, Clock::time_point end) {
  std::vector<int64_t> probers = one_of_each_host(endpoints);
  if (probers.size() < 2) return;
  auto readers = static_cast<int64_t>(endpoints.size()) - 1;
  auto place =
      static_cast<size_t>(std::find(probers.begin(), probers.end(), rank) - probers.begin());
  bool probes = place < probers.size();
  std::optional<ReachabilityProbe> listeners;
  std::vector<Endpoint> theirs;
  if (probes) {
    listeners.emplace(endpoints[static_cast<size_t>(rank)].address, ports);
    store.set("listener/" + std::to_string(place),
              bytes_of(base::json_text(std::pair(listeners->tcp_port(), listeners->udp_port()))));
    theirs = with_ports(store, probers, endpoints, end);
  }
  const LookTimes times = look_times(Clock::now(), end);
  if (probes)
    store.set("found/" + std::to_string(place),
              bytes_of(base::json_text(listeners->probe(theirs, place, times.probe))));
  auto hear_marks = [&] {
    store.set("heard/" + std::to_string(place),
              bytes_of(base::json_text(listeners->heard(probers.size()))));
  };
  if (rank != 0) {
    std::string verdict = hear(store, "verdict", left_until(times.told));
    if (verdict == "good") return;
    if (probes) hear_marks();
    throw decode_error(hear(store, "causes", left_until(times.told)));
  }
  auto end_all = [&](const Error& error) {
    const std::string encoded = encode_with_key(error);
    publish(store, "causes", encoded, readers);
    throw decode_error(encoded);
  };
  std::vector<std::vector<ReachabilityProbe::Refused>> found;
  std::vector<std::vector<bool>> heard;
  auto from_each = [&]<class T>(std::vector<T>& out, const std::string& key,
                                Clock::time_point until) {
    for (size_t i = 0; i < probers.size(); ++i) {
      try {
        store.wait({key + std::to_string(i)}, left_until(until));
      } catch (const c10::DistStoreError&) {
        const std::string who =
            with_address(probers[i], endpoints[static_cast<size_t>(probers[i])]);
        throw Error(ErrorCode::rendezvous_failed,
                    "while hosts looked whether they reach each other, no word came from " + who)
            .help("look at the log of " + who +
                  ": it ended, hangs or is stopped, or the network between the hosts is broken");
      }
      const std::string at = key + std::to_string(i);
      out.push_back(
          told<T>(text_of(store.get(at)), "endpoints/" + at, "rank " + std::to_string(probers[i])));
    }
  };
  try {
    from_each(found, "found/", times.found);
  } catch (const Error& error) {
    publish(store, "verdict", "bad", /*readers=*/0);
    end_all(error);
  }
  const bool good =
      std::all_of(found.begin(), found.end(), [](const auto& refused) { return refused.empty(); });
  publish(store, "verdict", good ? "good" : "bad", readers);
  if (good) return;
  hear_marks();
  try {
    from_each(heard, "heard/", times.heard);
  } catch (const Error& error) {
    end_all(error);
  }
  auto words_of = [&](size_t i) {
    const Endpoint& endpoint = endpoints[static_cast<size_t>(probers[i])];
    return Named{with_address(probers[i], endpoint), endpoint.address};
  };
  std::string text;
  size_t pairs = 0;
  for (size_t i = 0; i < probers.size(); ++i)
    for (const auto& [to, why] : found[i]) {
      if (++pairs > kMostPairs) continue;
      if (to >= probers.size() || heard[to].size() < probers.size() ||
          heard[i].size() < probers.size())
        continue;
      text += (text.empty() ? "" : "; ") +
              cause(words_of(i), words_of(to), why, heard[to][i], heard[i][to]);
    }
  if (pairs > kMostPairs) text += "; and " + std::to_string(pairs - kMostPairs) + " more pairs";
  Error error(ErrorCode::rendezvous_failed, text);
  error.help(
      "look at routes and firewalls between these hosts: the ranks connect to each other at ports "
      "of MESHWRIGHT_PORT_RANGE first, and then, over gloo, at those that the kernel gives out");
  error.help(kSetInterface);
  end_all(error);
}

std::vector<Endpoint> exchange_rows(c10d::Store& store, const launch::RankEnvironment& ranks,
                                    const Row& mine, Clock::time_point end) {
  store.set("row/" + std::to_string(ranks.rank), bytes_of(base::json_text(mine)));
  std::string text;
  if (ranks.rank == 0) {
    std::vector<std::string> texts;
    for (int64_t r = 0; r < ranks.world_size; ++r) {
      std::string key = "row/" + std::to_string(r);
      store.wait({key}, left_until(end));
      texts.push_back(text_of(store.get(key)));
    }
    Table table;
    try {
      std::vector<Row> rows;
      for (size_t r = 0; r < texts.size(); ++r)
        rows.push_back(
            told<Row>(texts[r], "endpoints/row/" + std::to_string(r), "rank " + std::to_string(r)));
      table.endpoints = settle(rows, ranks);
    } catch (const Error& error) {
      table.error = encode_with_key(error);
    }
    text = base::json_text(table);
    publish(store, "table", text, ranks.world_size - 1);
  } else {
    text = hear(store, "table", left_until(end) + Milliseconds(2000));
  }
  const auto [endpoints, error] = told<Table>(text, "endpoints/table", "rank 0");
  if (!error.empty()) throw decode_error(error);
  if (endpoints.size() != static_cast<size_t>(ranks.world_size))
    throw Error(ErrorCode::rendezvous_failed,
                "what rank 0 left in the store under \"endpoints/table\" has " +
                    std::to_string(endpoints.size()) + " rows for " +
                    std::to_string(ranks.world_size) + " ranks");
  try_pairs(store, ranks.rank, endpoints, ranks.ports, end);
  return endpoints;
}

}  // namespace

std::vector<Endpoint> find_endpoints(const c10::intrusive_ptr<c10d::Store>& base,
                                     const launch::RankEnvironment& ranks,
                                     const WantedInterface& wanted, Milliseconds timeout) {
  auto store = c10::make_intrusive<c10d::PrefixStore>("endpoints", base);
  auto end = Clock::now() + timeout;
  const Row mine = own_row(ranks, wanted, end);
  const WithOthers words{ranks.rank, timeout, "learn the addresses of the others",
                         "a rank did not come"};
  return with_others(words, left_until(look_times(Clock::now(), end).all),
                     [=] { return exchange_rows(*store, ranks, mine, end); });
}

namespace {

constexpr std::string_view kGreeting = "meshwright endpoint ";

bool lower(const Endpoint& a, const Endpoint& b) {
  auto bytes = [](const Endpoint& endpoint) {
    std::array<unsigned char, sizeof(in6_addr)> out{};
    for (int family : {AF_INET, AF_INET6})
      if (::inet_pton(family, endpoint.address.c_str(), out.data()) == 1) break;
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
  tcp_port_ = local_end(tcp_).port;
  // Without it nothing is lost but the direction in an error.
  udp_ = packets_at(ports, address, udp_is_v6_);
  if (udp_ >= 0) udp_port_ = local_end(udp_).port;
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
  std::vector<pollfd> open(endpoints.size(), pollfd{-1, POLLOUT, 0});  // -1: poll() leaves it out
  size_t left = 0;
  auto over = [&](size_t to, int reason) {
    if (reason != 0) out.push_back({to, std::strerror(reason)});
    if (open[to].fd >= 0) ::close(std::exchange(open[to].fd, -1));
  };
  for (size_t i = 0; i < endpoints.size(); ++i) {
    if (i == me || !lower(endpoints[i], endpoints[me])) continue;
    const std::optional<SocketAddress> there =
        socket_address(endpoints[i].address, endpoints[i].tcp_port);
    if (there)
      open[i].fd =
          ::socket(there->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool connected = open[i].fd >= 0 && ::connect(open[i].fd, there->get(), there->size) == 0;
    const int reason = connected ? 0 : errno;
    if (open[i].fd >= 0 && reason == EINPROGRESS)
      ++left;
    else
      over(i, reason);
  }
  greet(endpoints, me);
  constexpr auto kAgain = std::chrono::milliseconds(500);
  for (Clock::time_point greeted = Clock::now(); left > 0 && Clock::now() < end;) {
    ::poll(open.data(), open.size(), 100);
    for (size_t i = 0; i < open.size(); ++i) {
      if (open[i].fd < 0 || open[i].revents == 0) continue;
      int reason = 0;
      socklen_t size = sizeof reason;
      ::getsockopt(open[i].fd, SOL_SOCKET, SO_ERROR, &reason, &size);
      over(i, reason);
      --left;
    }
    if (Clock::now() - greeted > kAgain) {
      greeted = Clock::now();
      greet(endpoints, me);
    }
  }
  for (size_t i = 0; i < open.size(); ++i)
    if (open[i].fd >= 0) over(i, ETIMEDOUT);
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
    const std::optional<size_t> endpoint = text::to_number<size_t>(text);
    if (endpoint && *endpoint < endpoints) out[*endpoint] = true;
  }
  return out;
}

}  // namespace meshwright::rendezvous
