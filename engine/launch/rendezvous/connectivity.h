// The network interfaces of this host, its sockets, and where rank 0 listens for the others.
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

// The interface that the user asked for: GLOO_SOCKET_IFNAME, which may differ from host to host,
// before dist_env.interface. Empty name: none.
struct WantedInterface {
  std::string name, named_by;
};
WantedInterface wanted_interface(const std::string& key);

// "10.70.0.1"; empty for what is neither IPv4 nor IPv6.
std::string numeric(const sockaddr* address);
// An end of a socket; without an address it has none.
struct SocketEnd {
  std::string address;
  int port = 0;
  bool operator==(const SocketEnd&) const = default;
};
SocketEnd local_end(int fd);
SocketEnd remote_end(int fd);
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
  SocketEnd local, remote;
  bool listens() const { return remote.address.empty(); }
};
std::vector<OwnSocket> own_sockets();
// From now on whoever connects to the sockets of this process that listen there gets no answer, and
// takes none of its descriptors; connections that are there stay. The sockets stay their owner's.
// False: there is none, or the kernel keeps one open.
bool shut(const std::string& address, int port);

inline const std::string kLoopback = "127.0.0.1", kAllInterfaces;
// A listening socket at an address of this host, or at all of them, by one socket for both families
// where there is IPv6. Throws Error(rendezvous_failed) that says what to do when the port is taken.
int listen_at(const std::string& address, int port);
// The same at a free port of the range; any that the kernel gives out where there is none. Throws
// Error(rendezvous_failed) that names the range when all its ports are taken.
int listen_at(const std::string& address, const launch::PortRange& ports);
// Those of the range where no job meets (PortRange::for_others()), from a random one on, so that
// the ranks of a host rarely want the same; {0} where there is no range.
std::vector<int> ports_to_try(const launch::PortRange& ports);

// The two ends of a connection: "10.70.0.2", "fd00::2".
struct Route {
  std::string local, remote;
};
// The way to where MASTER_ADDR and MASTER_PORT lead; empty ends: there was none until `end`. Comes
// back half a second later at most, however long a name server takes.
Route route_to_master(const launch::RankEnvironment& ranks,
                      std::chrono::steady_clock::time_point end);
// Of a listening socket, whose connections inherit it, or of a connection: as long as
// keep_alive_times() (deadlines.h) says. By default, without a timeout, two minutes.
void keep_alive(int fd, std::chrono::milliseconds timeout = {});
// Tries until `end` to connect to host:port. The connection does not block, and ends when the other
// host is gone; -1: there is none, and `why` says the reason ("Connection refused").
int connect_to(const std::string& host, int port, std::chrono::steady_clock::time_point end,
               std::string* why = nullptr);

// The addresses of this host that are to be opened for `master`, which resolves to `resolved` here;
// empty: every one, for nothing tells which. In this order: those of MASTER_ADDR itself; loopback
// where it names that; those of the interface asked for; those of the only interface there is.
// nullopt: nobody answers for the name; then Error(rendezvous_failed) rather than every one.
std::vector<std::string> addresses_to_open(const std::string& master,
                                           const std::optional<std::vector<std::string>>& resolved,
                                           const std::string& interface,
                                           const std::vector<Interface>& all);

struct OpenListeners {
  std::vector<int> sockets;  // listening
  std::string own;           // where rank 0 itself connects
  bool everywhere = false;   // on every interface, for nothing tells which
  std::string local = {};    // where ranks of this host connect; empty: as own
  const std::string& nearest() const { return local.empty() ? own : local; }
};
// The inherited socket, loopback alone where all ranks are on one host, else the addresses above
// and this host's loopback. Throws Error(rendezvous_failed).
OpenListeners open_listeners(const launch::RankEnvironment& ranks, const std::string& interface);
// A free port (of the range) at the first of these addresses. The same, where nobody has it there,
// at the others, for hosts of the other family, which go where MASTER_ADDR leads; and at this
// host's loopback: an address goes with its link, and ranks of this host must not lose the store
// with it.
OpenListeners listeners_at(const std::vector<std::string>& addresses,
                           const launch::PortRange& ports);
// One such port, the first of the sockets at what `own` says, for a store of rank 0's own beside
// the launcher's or for heartbeat.h: where MASTER_ADDR is no address of this host and nothing else
// tells, at `here`, from which this host reaches it.
OpenListeners open_listeners_beside(const launch::RankEnvironment& ranks,
                                    const std::string& interface, const std::string& here);

}  // namespace meshwright::rendezvous
