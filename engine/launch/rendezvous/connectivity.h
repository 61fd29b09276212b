// Sockets of the rendezvous: where rank 0 listens, and whether it can be reached.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "engine/launch/ranks.h"

namespace meshwright::rendezvous {

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
