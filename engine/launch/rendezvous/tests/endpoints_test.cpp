// Where ranks listen, whether hosts reach each other, and what a lost peer is called. Several hosts
// proper: tests/hosts.
#include "engine/launch/rendezvous/endpoints.h"

#include <doctest/doctest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "meshwright/error.h"
#include "sdk/comm/tests/shared_memory_switch.h"

namespace endpoints_test {

using namespace meshwright;
using namespace meshwright::rendezvous;
using launch::RankEnvironment;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

std::string loopback_name() {
  for (const Interface& i : interfaces())
    if (i.loopback) return i.name;
  return "";
}

// As many ranks that share a store; each looks for its interface. What each got or threw.
struct Found {
  std::vector<Endpoint> endpoints;
  std::string message;
  ErrorCode code = ErrorCode::internal;
  size_t helps = 0;
};
std::vector<Found> find_all(const std::vector<std::string>& wanted, bool one_host,
                            const std::string& master, int port,
                            const launch::PortRange& ports = {}) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  store->setTimeout(milliseconds(30000));
  std::vector<Found> out(wanted.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < wanted.size(); ++r)
    threads.emplace_back([&, r] {
      RankEnvironment ranks;
      ranks.rank = static_cast<int64_t>(r);
      ranks.world_size = static_cast<int64_t>(wanted.size());
      ranks.local_world_size = one_host ? ranks.world_size : 1;
      ranks.master_addr = master;
      ranks.master_port = port;
      ranks.ports = ports;
      try {
        out[r].endpoints =
            find_endpoints(store, ranks, {wanted[r], "dist_env.interface"}, milliseconds(30000));
      } catch (const Error& error) {
        out[r].message = error.message();
        out[r].code = error.code();
        out[r].helps = error.helps().size();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return out;
}

// A listening socket as rank 0's store has it.
struct Listener {
  int fd = listen_at(kAllInterfaces, 0), port = local_end(fd).port;
  ~Listener() { ::close(fd); }
};

// A port where nobody listens any more, as a range of its own.
launch::PortRange one_free_port() {
  const Listener gone;
  return {gone.port, gone.port};
}

}  // namespace

TEST_CASE(
    "interfaces: the loopback is there, IPv4 first; a wrong name is an error that lists them all") {
  std::vector<Interface> all = interfaces();
  REQUIRE(!loopback_name().empty());
  CHECK(address_of(loopback_name(), "dist_env.interface", all) == "127.0.0.1");
  try {
    address_of("nic9", "GLOO_SOCKET_IFNAME", all);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::bad_interface);
    CHECK(exit_status(error.code()) == 4);
    CHECK(error.message().starts_with(
        "GLOO_SOCKET_IFNAME = \"nic9\" is not an interface of this host"));
    for (const Interface& i : all) {
      CHECK(error.message().find(i.name + " (") != std::string::npos);
      CHECK(error.message().find(i.address) != std::string::npos);
    }
  }
  std::vector<Interface> made = {{"eth0", "10.70.0.1", false, false},
                                 {"eth1", "fe80::1", false, true},
                                 {"eth0", "fd00::1", false, false}};
  CHECK(list_of(made) == "eth0 (10.70.0.1, fd00::1), eth1 (fe80::1)");
  CHECK(address_of("eth0", "dist_env.interface", made) == "10.70.0.1");
  CHECK_THROWS_WITH_AS(address_of("eth1", "dist_env.interface", made),
                       doctest::Contains("no address but the link-local fe80::1"), Error);
}

TEST_CASE("the variable comes before the key") {
  struct Row {
    const char *variable, *key, *name, *named_by;
  };
  for (const Row& row : {Row{nullptr, "", "", "dist_env.interface"},
                         Row{nullptr, "eth0", "eth0", "dist_env.interface"},
                         Row{"eth1", "eth0", "eth1", "GLOO_SOCKET_IFNAME"},
                         Row{"", "eth0", "eth0", "dist_env.interface"}}) {
    const testing::Variable variable("GLOO_SOCKET_IFNAME", row.variable);
    CHECK(wanted_interface(row.key).name == row.name);
    CHECK(wanted_interface(row.key).named_by == row.named_by);
  }
}

TEST_CASE(
    "ranks of one host take the loopback interface, whether their launcher said that there is one "
    "host or not") {
  Listener listener;
  for (bool told : {true, false}) {
    for (const Found& found : find_all({"", "", ""}, told, "localhost", listener.port)) {
      CHECK(found.message == "");
      REQUIRE(found.endpoints.size() == 3);
      for (const Endpoint& endpoint : found.endpoints) {
        CHECK(is_loopback_address(endpoint.address));
        CHECK(!endpoint.host.empty());
      }
    }
  }
}

TEST_CASE("an interface that one rank does not have is an error on all, which names the rank") {
  Listener listener;
  for (bool told : {true, false}) {
    for (const Found& found :
         find_all({loopback_name(), "nic9", loopback_name()}, told, "127.0.0.1", listener.port)) {
      CHECK(found.code == ErrorCode::bad_interface);
      CHECK(found.message.starts_with("rank 1 on "));
      CHECK(found.message.find("dist_env.interface = \"nic9\" is not an interface") !=
            std::string::npos);
      CHECK(found.helps == 1);
    }
  }
}

TEST_CASE(
    "of two endpoints the one with the higher address probes; refused connections are named, and "
    "packets are heard") {
  ReachabilityProbe low("127.0.0.1"), high("127.0.0.2");
  std::vector<Endpoint> endpoints = {{"a", "127.0.0.1", low.tcp_port(), low.udp_port()},
                                     {"b", "127.0.0.2", high.tcp_port(), high.udp_port()}};
  CHECK(high.probe(endpoints, 1, Clock::now() + milliseconds(20000)).empty());
  CHECK(low.probe(endpoints, 0, Clock::now() + milliseconds(20000)).empty());
  CHECK(low.heard(2) == std::vector<bool>{false, true});
  CHECK(high.heard(2) == std::vector<bool>{true, false});
  endpoints[0].tcp_port = one_free_port().first;
  std::vector<ReachabilityProbe::Refused> refused =
      high.probe(endpoints, 1, Clock::now() + milliseconds(20000));
  REQUIRE(refused.size() == 1);
  CHECK(refused[0].to == 0);
  CHECK(refused[0].why == "Connection refused");
  // Who does not open the connection does not notice, and must not: gloo does not need it.
  endpoints[1].tcp_port = endpoints[0].tcp_port;
  CHECK(low.probe(endpoints, 0, Clock::now() + milliseconds(20000)).empty());
  // What strangers send is not heard.
  std::optional<SocketAddress> listener = socket_address("127.0.0.1", low.udp_port());
  int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  low.heard(2);
  for (const char* text :
       {"", "hello", "meshwright endpoint ", "meshwright endpoint 9", "meshwright endpoint 1x"})
    ::sendto(fd, text, std::strlen(text), 0, listener->get(), listener->size);
  ::close(fd);
  CHECK(low.heard(2) == std::vector<bool>{false, false});
}

TEST_CASE("only one rank of each host takes a port to look, and none where there is one host") {
  Listener listener;
  for (const Found& found :
       find_all({"", "", ""}, false, "localhost", listener.port, one_free_port())) {
    CHECK(found.message == "");
    CHECK(found.endpoints.size() == 3);
  }
}

TEST_CASE(
    "a range of ports holds for listeners of both kinds, and an error says when it is used up") {
  const launch::PortRange one = one_free_port();
  const std::string range = std::to_string(one.first) + "-" + std::to_string(one.last);
  ReachabilityProbe listeners("127.0.0.1", one);
  CHECK(listeners.tcp_port() == one.first);
  CHECK(listeners.udp_port() == one.first);
  for (const std::string& address : {kLoopback, kAllInterfaces}) {
    try {
      ::close(listen_at(address, one));
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::rendezvous_failed);
      CHECK(error.message() == "no port of MESHWRIGHT_PORT_RANGE = " + range + " is free on " +
                                   (address == kAllInterfaces ? "all interfaces" : address));
      CHECK(error.helps()[0].starts_with("widen MESHWRIGHT_PORT_RANGE"));
    }
  }
}

TEST_CASE("where ranks meet by the job's number nothing else of a job listens") {
  auto tried = [](const launch::PortRange& range) {
    std::vector<int> out = ports_to_try(range);
    std::sort(out.begin(), out.end());
    return out;
  };
  CHECK(tried({29500, 29502}) == std::vector<int>{29500, 29501, 29502});  // too few to divide
  CHECK(tried({29500, 29503}) == std::vector<int>{29502, 29503});
  CHECK(tried({29500, 29504}) == std::vector<int>{29502, 29503, 29504});
  CHECK(tried({29500, 29503, /*port_given=*/true}) == std::vector<int>{29500, 29501, 29502, 29503});
  CHECK(ports_to_try({}) == std::vector<int>{0});
  // Two of four ports are taken.
  launch::PortRange range;
  std::vector<int> taken;
  for (int first = 42000; first < 43000 && taken.size() < 2; first += 4) {
    for (int fd : taken) ::close(fd);
    taken.clear();
    range = {first, first + 3};
    for (int port : ports_to_try(range)) {
      try {
        taken.push_back(listen_at("127.0.0.1", port));
      } catch (const Error&) {  // another program has it
      }
    }
  }
  REQUIRE(taken.size() == 2);
  try {
    ::close(listen_at("127.0.0.1", range));
    FAIL("no error");
  } catch (const Error& error) {
    const std::string last = std::to_string(range.last);
    CHECK(error.message() ==
          "no port of " + std::to_string(range.first + 2) + "-" + last +
              " (the second half of MESHWRIGHT_PORT_RANGE = " + std::to_string(range.first) + "-" +
              last + ") is free on 127.0.0.1");
  }
  for (int fd : taken) ::close(fd);
}

TEST_CASE(
    "a listener lets thousands of strangers in and out, and who comes then is not kept waiting") {
  ReachabilityProbe listeners("127.0.0.1");
  std::optional<SocketAddress> there = socket_address("127.0.0.1", listeners.tcp_port());
  REQUIRE(there);
  size_t came = 0;
  // More than the kernel keeps waiting for a socket.
  for (int i = 0; i < 6000; ++i) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(fd >= 0);
    came += ::connect(fd, there->get(), there->size) == 0 ? 1 : 0;
    linger at_once{1, 0};  // leaves no port behind that waits
    ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    ::close(fd);
  }
  CHECK(came == 6000);
  ReachabilityProbe mine("127.0.0.2");
  const std::vector<Endpoint> endpoints = {
      {"a", "127.0.0.1", listeners.tcp_port(), listeners.udp_port()},
      {"b", "127.0.0.2", mine.tcp_port(), mine.udp_port()}};
  CHECK(mine.probe(endpoints, 1, Clock::now() + milliseconds(5000)).empty());
}

TEST_CASE("a listener at an address takes packets there alone") {
  ReachabilityProbe listeners("127.0.0.1"), far("127.0.0.4");
  const std::vector<Endpoint> endpoints = {
      {"a", "127.0.0.1", listeners.tcp_port(), listeners.udp_port()},
      {"b", "127.0.0.4", far.tcp_port(), far.udp_port()}};
  CHECK(far.probe(endpoints, 1, Clock::now() + milliseconds(5000)).empty());
  CHECK(listeners.heard(2) == std::vector<bool>{false, true});
  // The same port at another address of this host.
  const std::vector<Endpoint> beside = {
      {"a", "127.0.0.3", listeners.tcp_port(), listeners.udp_port()}, endpoints[1]};
  CHECK(far.probe(beside, 1, Clock::now() + milliseconds(5000)).size() == 1);
  CHECK(listeners.heard(2) == std::vector<bool>{false, false});
}

TEST_CASE("a route tells both of its ends") {
  Listener listener;
  RankEnvironment ranks;
  ranks.master_port = listener.port;
  const Route route = route_to_master(ranks, Clock::now() + milliseconds(5000));
  CHECK(route.local == "127.0.0.1");
  CHECK(route.remote == "127.0.0.1");
  CHECK(source_for("127.0.0.1") == "127.0.0.1");
  CHECK(source_for("no address") == "");
}

TEST_CASE("connections to rank 0 are asked at both ends whether the other host is still there") {
  Listener listener;
  int out = connect_to("127.0.0.1", listener.port, Clock::now() + milliseconds(5000));
  REQUIRE(out >= 0);
  int in = ::accept4(listener.fd, nullptr, nullptr, SOCK_CLOEXEC);
  REQUIRE(in >= 0);
  for (int fd : {in, out}) {
    auto option = [fd](int level, int name) {
      int value = 0;
      socklen_t size = sizeof value;
      CHECK(::getsockopt(fd, level, name, &value, &size) == 0);
      return value;
    };
    auto silence = [&] {
      return option(IPPROTO_TCP, TCP_KEEPIDLE) +
             option(IPPROTO_TCP, TCP_KEEPINTVL) * option(IPPROTO_TCP, TCP_KEEPCNT);
    };
    CHECK(option(SOL_SOCKET, SO_KEEPALIVE) == 1);
    CHECK(silence() <= 120);
    keep_alive(fd, std::chrono::minutes(30));
    CHECK(silence() >= 30 * 60);
  }
  ::close(in);
  ::close(out);
}

}  // namespace endpoints_test
