// The network interfaces of this host.
#pragma once

#include <sys/socket.h>

#include <optional>
#include <string>
#include <vector>

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

}  // namespace meshwright::rendezvous
