// Where the ranks are: the host that errors name, and the address on which a rank's groups listen.
#pragma once

#include <chrono>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "engine/launch/ranks.h"
#include "engine/launch/rendezvous/connectivity.h"

namespace meshwright::rendezvous {

struct Endpoint {
  std::string host, address;  // "gpu004", "10.70.0.2"
  int tcp_port = 0,
      udp_port = 0;  // of its listener, for those that look whether the hosts reach each other
};

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

// Whether hosts reach each other: a socket of each kind where others probe, before gloo needs the
// same connections and only waits.

class ReachabilityProbe {
 public:
  // Listens on a free port, of the range where there is one, for connections and packets at that
  // address alone. Lets in whoever probes and closes, so that no stranger's
  // connections fill the queue. Throws Error(rendezvous_failed).
  explicit ReachabilityProbe(const std::string& address, const launch::PortRange& ports = {});
  ~ReachabilityProbe();
  ReachabilityProbe(const ReachabilityProbe&) = delete;
  ReachabilityProbe& operator=(const ReachabilityProbe&) = delete;
  int tcp_port() const { return tcp_port_; }
  int udp_port() const { return udp_port_; }

  struct Refused {
    size_t to;
    std::string why;
  };
  // Endpoint `me` connects to every endpoint of a lower address, as gloo will (of two ends the one
  // with the higher address opens the connection), and sends all others a few packets meanwhile.
  // Returns the endpoints that it could not connect to until `end`.
  std::vector<Refused> probe(const std::vector<Endpoint>& endpoints, size_t me,
                             std::chrono::steady_clock::time_point end);
  // For each endpoint, whether its packets have come.
  std::vector<bool> heard(size_t endpoints);

 private:
  void greet(const std::vector<Endpoint>& endpoints, size_t me);
  void let_in() const;
  int tcp_ = -1, udp_ = -1, tcp_port_ = 0, udp_port_ = 0;
  bool udp_is_v6_ = false;
  int stop_ = -1;  // readable: no more
  std::thread listener_;
};

}  // namespace meshwright::rendezvous
