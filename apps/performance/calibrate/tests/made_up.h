// A machine whose figures are known, and the times that it would have.
#pragma once

#include <cmath>

#include "apps/performance/calibrate/fit.h"
#include "apps/performance/calibrate/measured.h"

namespace meshwright::calibrate {

inline steptime::Machine cpu_of(double fp32) {
  steptime::Machine m;
  m.name = "a processor";
  m.memory = 8e9;
  m.units = 1;
  m.bandwidth = 9e9;
  m.outside = 0.2e9;
  m.peak_fp32 = fp32;
  m.peak_bf16 = fp32 / 4;
  m.rate = {.product = 0.7,
            .elementwise = 0.6,
            .attention = 0.35,
            .unfused = 0.5,
            .short_inner = 90,
            .attention_backward = 1.1,
            .short_sequence = 70,
            .optimizer = 1.4};
  m.network.ranks_per_host = 4;
  m.network.bus = 1.3e9;
  m.network.nic = 0.4e9;
  m.network.nic_attained = 0.9;
  m.network.step_inside = 40e-6;
  m.network.step_outside = 130e-6;
  m.network.send_inside = 0.9e9;
  m.network.send_outside = 0.3e9;
  m.network.send_latency_inside = 25e-6;
  m.network.send_latency_outside = 160e-6;
  m.overlap.kappa = 0.2;
  m.overlap.adds = true;
  m.overlap.alone = 1.6;
  m.host = {0.2e-3, 0.3e-3, 1e-3};
  return m;
}

// A small gated model, for steps on such machines.
inline steptime::Shape small_shape() {
  steptime::Shape shape;
  shape.hidden = 256;
  shape.layers = 4;
  shape.heads = shape.kv_heads = 4;
  shape.head_dim = 64;
  shape.ffn = 1024;
  shape.vocabulary = 1000;
  return shape;
}

inline doctor::Collective collective(const steptime::Machine& truth, const char* op,
                                     const GroupTime& of, double whole) {
  doctor::Collective out;
  out.op = op;
  out.axis = "host";
  out.ranks = std::llround(of.group.size);
  const double g = of.group.size;
  const bool twice = out.op == "all_reduce", sends = out.op == "send/recv";
  auto seconds = [&](double bytes) {
    return sends   ? steptime::send(truth, of.group, bytes)
           : twice ? steptime::all_reduce(truth, of.group, bytes)
                   : steptime::all_gather(truth, of.group, bytes);
  };
  out.latency = seconds(kSmallMessage);
  out.bytes = std::llround(sends ? whole : (twice ? 2 : 1) * whole * (g - 1) / g);
  out.seconds = seconds(whole);
  return out;
}

// What a rank of `ranks` on `hosts` would measure where the model is right, but for `noise`: every
// other time is longer, the others are shorter by that share.
inline Measured measured_on(const steptime::Machine& truth, bool cuda, Widths widths, int64_t ranks,
                            int64_t hosts, double noise = 0) {
  Measured out;
  out.device = truth.name;
  out.cuda = cuda;
  out.ranks = static_cast<double>(ranks);
  out.hosts = static_cast<double>(hosts);
  const auto ranks_per_host = ranks / hosts;
  out.ranks_per_host = static_cast<double>(ranks_per_host);
  out.memory = truth.memory;
  out.units = truth.units;
  add_sizes(out, widths);
  int count = 0;
  auto noisy = [&](double seconds) { return seconds * (++count % 2 == 0 ? 1 + noise : 1 - noise); };
  for (ProductTime& time : out.products) {
    const steptime::Product& p = time.product;
    double seconds = steptime::seconds_of(truth, p, time.precision);
    if (time.backward)
      seconds = steptime::seconds_of(truth, {p.rows, p.inner, p.columns}, time.precision) +
                steptime::seconds_of(truth, {p.columns, p.inner, p.rows}, time.precision);
    time.seconds = noisy(seconds);
  }
  for (MovedTime& time : out.moved) {
    time.bytes = 1e8;
    // A copy has all of the bandwidth.
    time.seconds = noisy(time.kernel == "copy"        ? time.bytes / truth.bandwidth
                         : time.kernel == "optimizer" ? steptime::update(truth, time.bytes)
                                                      : steptime::elementwise(truth, time.bytes));
  }
  for (AttentionTime& time : out.attention) {
    steptime::Job job;
    job.length = time.length;
    job.micro_batch = time.batch;
    job.width = cuda ? 2 : 4;
    const steptime::Core core = steptime::attention_core(truth, job, time.heads, time.head_dim);
    time.forward = noisy(core.forward);
    time.backward = noisy(core.backward);
  }
  for (ModelTime& time : out.launches) {
    time.forward = 1e-4 + time.layers * truth.host.layer_forward;
    time.backward = 2e-4 + time.layers * truth.host.layer_backward;
  }
  for (ModelTime& time : out.layers) {
    const steptime::LayerTime layer = model_layer(truth, time);
    time.forward = 1e-4 + time.layers * layer.forward.sum();
    time.backward = 2e-4 + time.layers * layer.backward.sum();
  }
  if (!cuda && ranks > hosts)
    for (const ProductTime& time : out.products)
      if (time.precision == steptime::Precision::full && !time.backward)
        out.alone = time.seconds / truth.overlap.alone;
  if (cuda && ranks > 1) out.beside = {20e-3, 20e-3 + truth.overlap.kappa * 10e-3, 10e-3};
  std::vector<int64_t> host;
  for (int64_t r = 0; r < ranks; ++r) host.push_back(r / (ranks / hosts) * (ranks / hosts));
  for (const Ranks& some : groups_of(host, 0)) {
    GroupTime group{some.kind, some.group, {}};
    for (const double whole : {1e6, 16e6})
      for (const char* op : {"all_gather", "reduce_scatter", "all_reduce", "send/recv"})
        group.collectives.push_back(collective(truth, op, group, whole));
    for (doctor::Collective& c : group.collectives) {
      c.latency = noisy(c.latency);
      c.seconds = noisy(c.seconds);
    }
    out.groups.push_back(std::move(group));
  }
  return out;
}

}  // namespace meshwright::calibrate
