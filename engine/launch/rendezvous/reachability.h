// Whether hosts reach each other: a socket of each kind where others probe, before gloo needs the
// same connections and only waits.
#pragma once

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "engine/launch/rendezvous/endpoints.h"

namespace meshwright::rendezvous {

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
