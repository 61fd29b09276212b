// Where rank 0 listens for the others: at the address that MASTER_ADDR names, on one interface.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/launch/ranks.h"
#include "engine/launch/rendezvous/connectivity.h"

namespace meshwright::rendezvous {

// The addresses of this host that are to be opened for `master`, which resolves to `resolved` here;
// empty: every one, for nothing tells which. In this order: those of MASTER_ADDR itself; loopback
// where it names that; those of the interface asked for; those of the only interface there is.
// nullopt: nobody answers for the name; then Error(rendezvous_failed) rather than every one.
std::vector<std::string> addresses_to_open(const std::string& master,
                                           const std::optional<std::vector<std::string>>& resolved,
                                           const std::string& interface,
                                           const std::vector<Interface>& all);
// The same for this host now. Takes five seconds at most.
std::vector<std::string> addresses_to_open(const launch::RankEnvironment& ranks,
                                           const std::string& interface);

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
