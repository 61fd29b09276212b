// The figures of [network], from the times of collectives.
#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/doctor/links.h"
#include "apps/performance/calibrate/fit.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::calibrate {

namespace {

using doctor::Collective;
using steptime::Machine;

bool in_ring(const Collective& c) {
  return c.op == "all_gather" || c.op == "reduce_scatter" || c.op == "all_reduce";
}
// From each rank to the next, as pipelines send.
bool is_send(const Collective& c) { return c.op == "send/recv"; }
// A ring goes round once, for an all-reduce twice.
double rounds(const Collective& c) { return c.op == "all_reduce" ? 2 : 1; }

// Up to here an all-reduce of few bytes goes round a ring, not up and down a tree.
constexpr int64_t kRingRanks = 8;

struct Way {
  Bounded step, rate;  // seconds a ring step; bytes a second
};

// What fits them best. A rate of 0: nothing says it.
Way way_through(std::span<const Sample> samples) {
  const Line line = fit_line(samples);
  // Beyond what a machine file may say lies only what is broken. A step takes some time.
  Way out;
  out.step = bounded(line.x, 0, 0.1);
  out.step.beyond = out.step.beyond || line.x <= 0;
  if (line.y > 0) out.rate = bounded(1 / line.y, 1e6, 1e13);
  return out;
}

// Seconds of a ring step and bytes a second of one kind of groups. A rate of 0: nothing says it.
Way way_of(const GroupTime& group, bool all_reduces) {
  std::vector<Sample> samples;
  for (const Collective& c : group.collectives) {
    if (!in_ring(c) || (c.op == "all_reduce" && !all_reduces)) continue;
    const auto g = static_cast<double>(c.ranks);
    const double steps = rounds(c) * (g - 1);
    if (c.op != "all_reduce" || c.ranks <= kRingRanks)
      samples.push_back({steps, rounds(c) * kSmallMessage * (g - 1) / g, c.latency});
    samples.push_back({steps, static_cast<double>(c.bytes), c.seconds});
  }
  return way_through(samples);
}

// The same of a message from one rank to the next, in which `step` is that of an empty one.
Way send_of(const GroupTime& group) {
  std::vector<Sample> samples;
  for (const Collective& c : group.collectives) {
    if (!is_send(c)) continue;
    samples.push_back({1, kSmallMessage, c.latency});
    samples.push_back({1, static_cast<double>(c.bytes), c.seconds});
  }
  return way_through(samples);
}

const GroupTime* find(const Measured& measured, GroupTime::Kind kind) {
  for (const GroupTime& group : measured.groups)
    if (group.kind == kind && !group.collectives.empty()) return &group;
  return nullptr;
}

constexpr double kMostOfSwitch = 4;

// How much faster an all-reduce is than a ring inside a host.
Bounded in_switch(const GroupTime& host, const Way& way) {
  std::vector<Sample> samples;
  for (const Collective& c : host.collectives)
    if (c.op == "all_reduce")
      samples.push_back({static_cast<double>(c.bytes), 0,
                         c.seconds - 2 * static_cast<double>(c.ranks - 1) * way.step.value});
  const double seconds_a_byte = fit_line(samples).x;
  if (seconds_a_byte <= 0) return {1, true};
  // At 1 the switch does nothing for it, as it may be.
  const double gain = 1 / seconds_a_byte / way.rate.value;
  return {std::clamp(gain, 1.0, kMostOfSwitch), gain > kMostOfSwitch};
}

constexpr double kSwitchRanks = 6;  // as the model has it
constexpr double kLeastOfPair = 0.01;

}  // namespace

std::vector<NetworkFigure> fit_network(const Measured& measured, Machine& machine) {
  std::vector<NetworkFigure> out;
  Machine::Network& net = machine.network;
  auto set = [&](std::string_view name, double& figure, const Bounded& found) {
    figure = found.value;
    out.push_back({name, found.beyond});
  };
  if (measured.ranks > 1)
    set("ranks_per_host", net.ranks_per_host, {measured.ranks_per_host, false});
  if (const GroupTime* host = find(measured, GroupTime::Kind::host)) {
    const bool by_switch = measured.cuda && host->group.size >= kSwitchRanks;
    const Way way = way_of(*host, /*all_reduces=*/!by_switch);
    if (way.rate.value > 0) {
      set("bus", net.bus, way.rate);
      set("step_inside", net.step_inside, way.step);
      // Without a sum, whose turn is last, the figure stays as it was.
      if (by_switch && std::any_of(host->collectives.begin(), host->collectives.end(),
                                   [](const Collective& c) { return c.op == "all_reduce"; }))
        set("in_switch", net.in_switch, in_switch(*host, way));
    }
    const GroupTime* pair = find(measured, GroupTime::Kind::pair);
    if (pair != nullptr && way.rate.value > 0)
      if (const Way two = way_of(*pair, true); two.rate.value > 0) {
        // At 1 a pair has all of the rate, as it may be.
        const double share = two.rate.value / net.bus;
        set("pair", net.pair, {std::clamp(share, kLeastOfPair, 1.0), share < kLeastOfPair});
      }
    if (const Way sent = send_of(*host); sent.rate.value > 0) {
      set("send_inside", net.send_inside, sent.rate);
      set("send_latency_inside", net.send_latency_inside, sent.step);
    }
  }
  const GroupTime* apart = find(measured, GroupTime::Kind::across);
  if (apart == nullptr) apart = find(measured, GroupTime::Kind::all);
  if (apart == nullptr) return out;
  if (const Way sent = send_of(*apart); sent.rate.value > 0) {
    set("send_outside", net.send_outside, sent.rate);
    set("send_latency_outside", net.send_latency_outside, sent.step);
  }
  const Way way = way_of(*apart, true);
  if (way.rate.value <= 0) return out;
  // The model: k NICs side by side, and one step in k goes to another host.
  const double k = apart->group.members_a_host();
  set("nic", net.nic, bounded(way.rate.value / k / net.nic_attained, 1e6, 1e13));
  set("step_outside", net.step_outside,
      bounded(k * (way.step.value - net.step_inside * (1 - 1 / k)), 0, 0.1));
  return out;
}

std::vector<Point> network_points(const Measured& measured, const Machine& machine) {
  std::vector<Point> out;
  for (const GroupTime& group : measured.groups)
    for (const Collective& c : group.collectives) {
      if (!in_ring(c) && !is_send(c)) continue;
      const auto g = static_cast<double>(c.ranks);
      auto add = [&](double whole, double seconds) {
        const double predicted = is_send(c) ? steptime::send(machine, group.group, whole)
                                 : c.op == "all_reduce"
                                     ? steptime::all_reduce(machine, group.group, whole)
                                     : steptime::all_gather(machine, group.group, whole);
        out.push_back({c.op + " " + c.axis + " (" + report::counted(c.ranks, "rank", "ranks") + ")",
                       report::human_bytes(std::llround(whole)), seconds, predicted});
      };
      add(kSmallMessage, c.latency);
      const auto bytes = static_cast<double>(c.bytes);
      add(is_send(c) ? bytes : bytes / rounds(c) * g / (g - 1), c.seconds);
    }
  return out;
}

}  // namespace meshwright::calibrate
