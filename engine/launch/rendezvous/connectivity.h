// The network interfaces of this host.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "engine/launch/ranks.h"

namespace meshwright::rendezvous {

struct Interface {
  std::string name, address;  // "eth0", "10.70.0.1"
  bool loopback = false;
  // An IPv6 address of use only together with the name of the interface: gloo cannot listen there.
  bool link_local = false;
};

// Each address of each interface that is up, IPv4 before IPv6.
std::vector<Interface> interfaces();
// "lo (127.0.0.1, ::1), eth0 (10.70.0.1)"
std::string list_of(const std::vector<Interface>& all);

// The address of the interface that `named_by` ("GLOO_SOCKET_IFNAME") names. Throws
// Error(bad_interface) with the list of those there are.
std::string address_of(const std::string& name, const std::string& named_by,
                       const std::vector<Interface>& all);

// "10.70.0.1"; empty for what is neither IPv4 nor IPv6.
std::string numeric(const sockaddr* address);
int port_of(const sockaddr* address);
int bound_port(int fd);  // of a socket; 0: it has none
// A numeric address with a port; nullopt when it does not read so.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};
std::optional<SocketAddress> socket_address(const std::string& numeric_address, int port);
bool is_loopback_address(const std::string& numeric_address);
bool is_of_this_host(const std::string& numeric_address);  // of an interface that is up

// The address of this host from which packets to that address would leave; empty when there is no
// route.
std::string source_for(const std::string& numeric_address);

// The TCP sockets of this process: a listening one has no remote end.
struct OwnSocket {
  int fd = -1;
  std::string local, remote;
  int local_port = 0, remote_port = 0;
  bool listens() const { return remote.empty(); }
};
std::vector<OwnSocket> own_sockets();
// From now on whoever connects to the sockets of this process that listen there gets no answer, and
// takes none of its descriptors; connections that are there stay. The sockets stay their owner's.
// False: there is none, or the kernel keeps one open.
bool shut(const std::string& address, int port);

// Sockets of the rendezvous: where rank 0 listens, and whether it can be reached.

// A listening socket on 127.0.0.1, or on every interface. Throws Error(rendezvous_failed) that says
// what to do when the port is taken.
int listen_on(int port, bool loopback_only);
// The same at one address of this host ("10.70.0.1").
int listen_at(const std::string& address, int port);
// The same at a free port of the range; any that the kernel gives out where there is none. Throws
// Error(rendezvous_failed) that names the range when all its ports are taken.
int listen_on(const launch::PortRange& ports, bool loopback_only);
int listen_at(const std::string& address, const launch::PortRange& ports);
// Those of the range where no job meets (PortRange::for_others()), from a random one on, so that
// the ranks of a host rarely want the same; {0} where there is no range.
std::vector<int> ports_to_try(const launch::PortRange& ports);

// The two ends of a connection, as numbers: "10.70.0.2", "fd00::2".
struct Route {
  std::string local, remote;
};

// Tries until `end` to connect to host:port, and hangs up again. Empty, or why it could not
// ("Connection refused"). `route`: which way the connection took.
std::string try_connect(const std::string& host, int port,
                        std::chrono::steady_clock::time_point end, Route* route = nullptr);
// The way to where MASTER_ADDR and MASTER_PORT lead; empty ends: there was none until `end`. Comes
// back half a second later at most, however long a name server takes.
Route route_to_master(const launch::RankEnvironment& ranks,
                      std::chrono::steady_clock::time_point end);
// Of a listening socket, whose connections inherit it, or of a connection: as long as
// keep_alive_times() (deadlines.h) says. By default, without a timeout, two minutes.
void keep_alive(int fd, std::chrono::milliseconds timeout = {});
// The connection itself, which does not block and ends when the other host is gone; -1: there is
// none, and `why` says the reason.
int connect_to(const std::string& host, int port, std::chrono::steady_clock::time_point end,
               std::string* why = nullptr);

}  // namespace meshwright::rendezvous
