// Which ranks of a group are on one host, and a transport that makes use of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "meshwright/export.h"
#include "sdk/base/transport.h"
#include "watchdog.h"

namespace meshwright::detail {

// The hosts of a group, in the order of their first ranks; those of a host in the order of the
// group.
struct MESHWRIGHT_API HostMap {
  std::vector<int64_t> host, local;  // by place in the group: its host, its number on that host
  std::vector<std::vector<int64_t>> places;                  // by host and number on it
  explicit HostMap(const std::vector<int64_t>& identities);  // by place; alike: one host
  int64_t hosts() const { return static_cast<int64_t>(places.size()); }
  int64_t each() const { return static_cast<int64_t>(places[0].size()); }  // ranks of the first
  int64_t place(int64_t host_index, int64_t number) const {
    return places[static_cast<size_t>(host_index)][static_cast<size_t>(number)];
  }
  // Several hosts, all with as many ranks of the group, two at least, and kMostRanks in all at
  // most: the pieces that are shared out among them have room in shared memory.
  static constexpr int64_t kMostRanks = 64;
  bool layered() const;
};

// Collective over the group, which goes by `transport`. Hosts are told apart by their kernel and
// the file system that shared memory lies in. MESHWRIGHT_HOSTS ("0,0,1,1": a number for each rank
// of the job, from the start again behind its end) says in their place who is to be on one host, so
// that several may be tried on one. Groups of less than four ranks do not ask, and neither do those
// without shared memory: one host.
HostMap find_hosts(Transport& transport, const Place& place, int64_t rank);

// Makes the sockets between some ranks of the job; collective over them. The name is one beside
// that of the group.
using ConnectSome = std::function<std::shared_ptr<Transport>(const std::string& name,
                                                             const std::vector<int64_t>& ranks)>;

// Collective over the group. The transport of a group with map.layered(): what is large goes
// through shared memory inside a host and between hosts only among ranks of one number, so that
// each byte enters a host once; all else by `sockets`. Sums are added up on each host, in the order
// of its ranks, and then in that of the hosts, in the tensors' dtype. Collectives go on without the
// thread that started them. nullptr: there is no room in shared memory, on some host.
std::shared_ptr<Transport> layered_over(std::shared_ptr<Transport> sockets,
                                        std::shared_ptr<const Place> place, int64_t rank,
                                        const HostMap& map, const ConnectSome& connect);

}  // namespace meshwright::detail
