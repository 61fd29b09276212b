#include "apps/performance/steptime/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

namespace meshwright::steptime {

namespace {

struct Tile {
  double rows, columns, rate;
};
// Large tiles read least; small ones fill the chip where a product is small.
constexpr Tile kTiles[] = {
    {256, 128, 1}, {128, 256, 1}, {128, 128, 0.93}, {128, 64, 0.78}, {64, 64, 0.58}};
constexpr double kLaunch = 2e-6;

double peak_of(const Machine& machine, Precision precision) {
  switch (precision) {
    case Precision::full:
    case Precision::tf32:
      return machine.peak_of_float32(precision == Precision::tf32);
    case Precision::half:
      return machine.peak_bf16;
    case Precision::fp8:
      return machine.peak_fp8 * machine.rate.product_fp8;
  }
  return 0;
}

double attained(const Machine& machine, Attention kernel) {
  switch (kernel) {
    case Attention::flash:
      return machine.rate.attention;
    case Attention::fa2:
      return machine.rate.attention_fa2;
    case Attention::triton:
      return machine.rate.attention_triton;
    case Attention::unfused:
      return machine.rate.product * machine.rate.unfused;
  }
  return 0;
}

}  // namespace

double utilisation(const Machine& machine, const Product& product) {
  double best = 0;
  for (const Tile& tile : kTiles) {
    const double tiles =
        std::ceil(product.rows / tile.rows) * std::ceil(product.columns / tile.columns);
    const double filled = product.rows * product.columns / (tiles * tile.rows * tile.columns);
    const double waves = tiles / machine.units;
    best = std::max(best, tile.rate * filled * waves / std::ceil(waves));
  }
  return best * product.inner / (product.inner + machine.rate.short_inner);
}

double seconds_of(const Machine& machine, const Product& product, Precision precision) {
  const double m = product.rows, n = product.columns, k = product.inner;
  if (m <= 0 || n <= 0 || k <= 0) return 0;
  const double rate =
      peak_of(machine, precision) * machine.rate.product * utilisation(machine, product);
  const double in = precision == Precision::fp8    ? 1
                    : precision == Precision::half ? 2
                                                   : 4,
               out = precision == Precision::fp8 ? 2 : in;
  const double bytes = in * (m * k + n * k) + out * m * n;
  return std::max(2 * m * n * k / rate, bytes / machine.bandwidth) + kLaunch;
}

double elementwise(const Machine& machine, double bytes) {
  return bytes / (machine.rate.elementwise * machine.bandwidth);
}

double update(const Machine& machine, double bytes) {
  if (machine.rate.optimizer <= 0) return elementwise(machine, bytes);
  return bytes / (machine.rate.optimizer * machine.bandwidth);
}

Core attention_core(const Machine& machine, const Job& job, double heads, double head_dim) {
  const double s = job.length, b = job.micro_batch, part = s / job.cp;
  const double causal = 2 * head_dim * heads * b * s * s / job.cp;
  const double peak = job.width > 2 ? machine.peak_fp32 : machine.peak_bf16;
  if (job.attention == Attention::unfused) {
    const double rate = peak * attained(machine, job.attention);
    const double scores = heads * b * s * s / job.cp;
    return {2 * causal / rate + elementwise(machine, 11 * scores),
            4 * causal / rate + elementwise(machine, 22 * scores)};
  }
  const double narrow = head_dim <= 64 && job.attention != Attention::triton ? 0.85 : 1;
  const double rate = peak * attained(machine, job.attention) * narrow * part /
                      (part + machine.rate.short_sequence);
  return {causal / rate, 2.5 * causal / (machine.rate.attention_backward * rate)};
}

namespace {

constexpr double kDispatchLatency = 40e-6, kDispatchAttained = 0.85;
constexpr double kRingBeside = 0.15;  // of a ring of messages, lost beside the kernels
constexpr double kTreeFrom = 6;       // ranks from which a switch that reduces pays

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
  if (group.size <= 1 || bytes <= 0) return 0;
  const Ring way = ring_of(machine, group);
  const double g = group.size;
  return (g - 1) * way.step + bytes * (g - 1) / g / way.rate;
}
double reduce_scatter(const Machine& machine, const Group& group, double bytes) {
  return all_gather(machine, group, bytes);
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
