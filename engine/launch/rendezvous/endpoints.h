// Where the ranks are: the host that errors name, and the address on which a rank's groups listen.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "engine/launch/ranks.h"

namespace meshwright::rendezvous {

struct Endpoint {
  std::string host, address;  // "gpu004", "10.70.0.2"
  int tcp_port = 0,
      udp_port = 0;  // of its listener, for those that look whether the hosts reach each other
};

// The interface that the user asked for: GLOO_SOCKET_IFNAME, which may differ from host to host,
// before dist_env.interface. Empty name: none.
struct WantedInterface {
  std::string name, named_by;
};
WantedInterface wanted_interface(const std::string& key);

// Collective over all ranks, before the first group. The address of each rank: 127.0.0.1 when it
// knows that all are on one host, that of the interface asked for, else the local end of the route
// to MASTER_ADDR. Rank 0, to whom MASTER_ADDR may be a name of the loopback interface (Debian
// writes 127.0.1.1 into /etc/hosts) or no name at all, takes the address at which the others
// reached it. Then one rank of each host tries whether the connections that gloo will make are
// possible.
//
// Throws on every rank the same Error(bad_interface) with the rank, its host and the interfaces
// there are, or Error(rendezvous_failed) that names the pairs of hosts that do not reach each other
// and the direction in which packets are lost, or who was lost meanwhile; all within the timeout
// and ten seconds (deadlines.h).
std::vector<Endpoint> find_endpoints(const c10::intrusive_ptr<c10d::Store>& store,
                                     const launch::RankEnvironment& ranks,
                                     const WantedInterface& wanted,
                                     std::chrono::milliseconds timeout);

}  // namespace meshwright::rendezvous
