#include "apps/performance/steptime/network.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

namespace meshwright::steptime {
namespace {

constexpr double kDispatchLatency = 40e-6, kDispatchAttained = 0.85;
constexpr double kRingBeside = 0.15;  // of a ring of messages, lost beside the kernels
constexpr double kTreeFrom = 6;       // ranks from which a switch that reduces pays

double ring(const Machine& machine, const Group& group, double bytes) {
  if (group.size <= 1 || bytes <= 0) return 0;
  const Ring way = ring_of(machine, group);
  const double g = group.size;
  return (g - 1) * way.step + bytes * (g - 1) / g / way.rate;
}

// Of the groups of a job the fewest members that one has on a host of its, and the most hosts.
struct Spread {
  double members, hosts;
};

Spread spread_of(const Group& group) {
  const double whole = std::max(
                   1.0, std::min(group.size, std::floor(group.ranks_per_host / group.stride))),
               reach = group.size * group.stride;
  if (group.size < 2 || group.ranks < reach || group.stride >= group.ranks_per_host ||
      std::fmod(reach, group.ranks_per_host) == 0 || std::fmod(group.ranks_per_host, reach) == 0)
    return {whole, std::ceil(group.size / whole)};
  // Groups begin at every rank below `stride` of a block of `reach` ranks. After some blocks their
  // places on hosts repeat.
  constexpr int64_t kMostBlocks = 64;
  const auto size = static_cast<int64_t>(group.size), stride = static_cast<int64_t>(group.stride),
             host = static_cast<int64_t>(group.ranks_per_host), block = size * stride;
  const int64_t blocks = std::min(
      {static_cast<int64_t>(group.ranks / reach), host / std::gcd(host, block), kMostBlocks});
  int64_t members = size, hosts = 1;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t begin = i * block % host;
    // The group with fewest on its first host, or on its last, is one of these: the first and the
    // last of the block, that which begins at a host's end, and that which ends at a host's begin.
    const int64_t ends = (host - (begin + (size - 1) * stride) % host) % host;
    for (const int64_t offset : {int64_t{0}, stride - 1, host - 1 - begin, ends}) {
      if (offset < 0 || offset >= stride) continue;
      const int64_t first = (begin + offset) % host, last = first + (size - 1) * stride,
                    over = last / host + 1;
      if (over == 1) continue;
      members = std::min({members, (host - first + stride - 1) / stride, last % host / stride + 1});
      if (over > 2) members = std::min(members, host / stride);
      hosts = std::max(hosts, over);
    }
  }
  return {static_cast<double>(members), static_cast<double>(hosts)};
}

}  // namespace

double Group::members_a_host() const { return spread_of(*this).members; }
double Group::hosts() const { return spread_of(*this).hosts; }

Ring ring_of(const Machine& machine, const Group& group) {
  const Machine::Network& net = machine.network;
  const double k = group.members_a_host();
  if (group.size <= k) {
    const bool alone = group.size <= 2 && group.ranks_per_host > 2;
    return {net.bus * (alone ? net.pair : 1), net.step_inside};
  }
  return {std::min(net.bus, k * net.nic * net.nic_attained),
          net.step_inside * (1 - 1 / k) + net.step_outside / k};
}

double all_gather(const Machine& machine, const Group& group, double bytes) {
  return ring(machine, group, bytes);
}
double reduce_scatter(const Machine& machine, const Group& group, double bytes) {
  return ring(machine, group, bytes);
}

double all_reduce(const Machine& machine, const Group& group, double bytes) {
  if (group.size <= 1 || bytes <= 0) return 0;
  Ring way = ring_of(machine, group);
  const double g = group.size, hosts = group.hosts(), inside = group.members_a_host();
  if (hosts == 1 && g >= kTreeFrom) way.rate *= machine.network.in_switch;
  const double by_ring = 2 * ((g - 1) * way.step + bytes * (g - 1) / g / way.rate);
  const double by_tree =
      4 * (std::log2(hosts) + std::log2(inside) + 1) * way.step + 2.1 * bytes / way.rate;
  return std::min(by_ring, by_tree);
}

double send(const Machine& machine, const Group& group, double bytes) {
  if (group.size <= 1) return 0;
  const Machine::Network& net = machine.network;
  auto seconds = [&](double measured, double ring, double latency) {
    return bytes / (measured > 0 ? measured : ring) + latency;
  };
  return group.hosts() > 1 ? seconds(net.send_outside, net.nic, net.send_latency_outside)
                           : seconds(net.send_inside, net.bus, net.send_latency_inside);
}

double exposed_ring(const Machine& machine, double moved, double compute) {
  if (machine.overlap.adds) return moved;
  return std::max(0.0, moved - compute) + kRingBeside * moved;
}

double dispatch(const Machine& machine, const Group& group, double tokens, double choices,
                double bytes_a_token) {
  if (group.size <= 1) return 0;
  const Machine::Network& net = machine.network;
  const double hosts = group.hosts(), ranks = group.size;
  // A token goes once to each host, and once to each rank there, that holds one of its experts.
  auto reached = [&](double places) { return places * (1 - std::pow(1 - 1 / places, choices)); };
  const double elsewhere = reached(hosts) * (hosts - 1) / hosts,
               targets = reached(ranks) * (ranks - 1) / ranks;
  const double outside = tokens * elsewhere * bytes_a_token / (net.nic * kDispatchAttained),
               inside = tokens * targets * bytes_a_token / (net.bus * kDispatchAttained);
  return std::max(outside, inside) + kDispatchLatency;
}

}  // namespace meshwright::steptime
