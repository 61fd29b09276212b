#include "apps/performance/calibrate/fit.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "apps/doctor/links.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/words.h"

namespace meshwright::calibrate {

Line fit_line(std::span<const Sample> samples) {
  // Of u = a / seconds and v = b / seconds: 1 = x u + y v.
  double u = 0, v = 0, uu = 0, uv = 0, vv = 0;
  for (const Sample& s : samples) {
    if (s.seconds <= 0) continue;
    const double p = s.a / s.seconds, q = s.b / s.seconds;
    u += p;
    v += q;
    uu += p * p;
    uv += p * q;
    vv += q * q;
  }
  const double det = uu * vv - uv * uv;
  if (det > 1e-9 * uu * vv) {
    const Line both{(u * vv - v * uv) / det, (v * uu - u * uv) / det};
    if (both.x >= 0 && both.y >= 0) return both;
  }
  // One of them is 0: what it takes off the sum of squares is u^2 / uu, or v^2 / vv.
  const double by_x = uu > 0 ? u * u / uu : 0, by_y = vv > 0 ? v * v / vv : 0;
  if (by_x == 0 && by_y == 0) return {};
  return by_x >= by_y ? Line{u / uu, 0} : Line{0, v / vv};
}

// The figures of [network], from the times of collectives.

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

constexpr int64_t kRingRanks = 8;  // up to here an all-reduce of few bytes is no tree
constexpr double kSwitchRanks = 6, kMostOfSwitch = 4;  // from 6 ranks on, as the model has it
constexpr double kLeastOfPair = 0.01;

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
      if (by_switch && std::ranges::find(host->collectives, "all_reduce", &Collective::op) !=
                           host->collectives.end())
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

namespace {

using steptime::Precision;
using steptime::Product;

constexpr double kLaunch = 2e-6;            // of a product, as the model has it
constexpr double kLongestInner = 5e3;       // rate.short_inner beyond this fits noise
constexpr double kLongestSequence = 1e4;    // rate.short_sequence beyond this fits noise
constexpr double kLeastElementwise = 0.05;  // of a layer; less is noise of the products

std::vector<Product> products_of(const ProductTime& time) {
  const Product& p = time.product;
  if (!time.backward) return {p};
  return {{p.rows, p.inner, p.columns}, {p.columns, p.inner, p.rows}};
}
double operations(const Product& p) { return 2 * p.rows * p.columns * p.inner; }

// What the products of one type need at 1 operation a second, and, in `b`, for each element of
// rate.short_inner beyond that.
std::vector<Sample> product_samples(const Measured& measured, Machine machine,
                                    Precision precision) {
  machine.rate.short_inner = 0;
  std::vector<Sample> out;
  for (const ProductTime& time : measured.products) {
    if (time.precision != precision) continue;
    Sample sample;
    sample.seconds = time.seconds;
    for (const Product& p : products_of(time)) {
      const double share = steptime::utilisation(machine, p);
      sample.a += operations(p) / share;
      sample.b += operations(p) / p.inner / share;
      sample.seconds -= kLaunch;
    }
    out.push_back(sample);
  }
  return out;
}

// Operations a second of large products, where a short inner dimension costs as said.
double rate_of(std::vector<Sample> samples, double short_inner) {
  for (Sample& s : samples) s = {s.a + short_inner * s.b, 0, s.seconds};
  const double x = fit_line(samples).x;
  return x > 0 ? 1 / x : 0;
}

Bounded lost_beside(const BesideTime& time) {
  return bounded((time.beside - time.alone) / time.gathers, 0, 1);
}

class Fit {
 public:
  Fit(const Measured& measured, const Shipped& shipped, const std::string& when,
      const std::string& where)
      : measured_(measured),
        shipped_(shipped),
        by_("measured by meshwright calibrate, " + when + ", " + where),
        at_bound_(std::string(steptime::kAtBound) + " by meshwright calibrate, " + when + ", " +
                  where) {
    out_.machine = shipped.machine;
    out_.machine.guessed.clear();
    out_.machine.at_bound.clear();
  }

  Fitted run() {
    device();
    products();
    moved();
    attention();
    layers();
    updated();
    alone();
    launches();
    beside();
    for (const NetworkFigure& figure : fit_network(measured_, machine()))
      take("network." + std::string(figure.name), figure.at_bound);
    machine().overlap.adds = !measured_.cuda;
    sources_of_the_rest();
    points();
    return std::move(out_);
  }

 private:
  Machine& machine() { return out_.machine; }
  void take(const std::string& key, bool at_bound = false) {
    out_.sources[key] = at_bound ? at_bound_ : by_;
  }
  void set(const std::string& key, double& figure, const Bounded& found) {
    figure = found.value;
    take(key, found.beyond);
  }
  // y / x of a line, which is at its bound where y is 0, too.
  static Bounded ratio_of(const Line& line, double most) {
    Bounded out = bounded(line.y / line.x, 0, most);
    out.beyond = out.beyond || line.y <= 0;
    return out;
  }
  void guess(const std::string& key, const std::string& why) {
    out_.sources[key] = "guessed: " + why;
  }
  Precision main() const { return measured_.cuda ? Precision::half : Precision::full; }
  Precision other() const { return measured_.cuda ? Precision::full : Precision::half; }
  double& peak(Precision precision) {
    return precision == Precision::full ? machine().peak_fp32 : machine().peak_bf16;
  }
  static std::string peak_key(Precision precision) {
    return precision == Precision::full ? "peak.fp32" : "peak.bf16";
  }

  void device() {
    Machine& m = machine();
    if (shipped_.same_device) return;
    m.name = measured_.device;
    m.reported.clear();
    if (measured_.cuda) m.reported.push_back(measured_.device);
    if (measured_.memory > 0) {
      m.memory = measured_.memory;
      take("device.memory");
    }
    m.units = measured_.units;
    take("device.units");
    if (m.outside >= m.memory / 2) {
      m.outside = m.memory / 10;
      guess("device.outside", "a tenth of the memory");
    }
    m.peak_fp8 = m.rate.product_fp8 = m.peak_tf32 = 0;
  }

  void products() {
    const std::vector<Sample> mine = product_samples(measured_, machine(), main()),
                              others = product_samples(measured_, machine(), other());
    const bool has_main = !mine.empty();
    const std::vector<Sample>& first = has_main ? mine : others;
    if (first.empty()) return;
    const Precision anchor = has_main ? main() : other(), rest = has_main ? other() : main();
    double& inner = machine().rate.short_inner;
    const Line line = fit_line(first);
    if (line.x > 0) set("rate.short_inner", inner, ratio_of(line, kLongestInner));
    const double rate = rate_of(first, inner);
    double& share = machine().rate.product;
    if (!shipped_.same_device) {
      double most = rate;
      for (const ProductTime& time : measured_.products)
        if (time.precision == anchor)
          for (const Product& p : products_of(time))
            most = std::max(most, operations(p) * (time.backward ? 2 : 1) / time.seconds);
      const double ratio = peak(rest) / peak(anchor);
      peak(anchor) = most;
      take(peak_key(anchor));
      set("rate.product", share, bounded(rate / most, 0.01, 1));
      peak(rest) = ratio * most;
      guess(peak_key(rest), "by the peak of the type that was measured, as shipped");
    } else if (has_main) {
      set("rate.product", share, bounded(rate / peak(main()), 0.01, 1));
    } else {
      peak(anchor) = rate / share;
      take(peak_key(anchor));
    }
    if (has_main && !others.empty()) {
      peak(rest) = rate_of(others, inner) / share;
      take(peak_key(rest));
    }
  }

  void moved() {
    double most = 0;
    std::vector<Sample> samples;  // none on CPUs: layers()
    for (const MovedTime& time : measured_.moved) {
      if (time.seconds <= 0 || time.kernel == "optimizer") continue;
      most = std::max(most, time.bytes / time.seconds);
      if (time.kernel != "copy") samples.push_back({time.bytes, 0, time.seconds});
    }
    if (most <= 0) return;
    if (!shipped_.same_device) {
      machine().bandwidth = most;
      take("device.bandwidth");
    }
    const double x = fit_line(samples).x;
    if (x <= 0) return;
    set("rate.elementwise", machine().rate.elementwise,
        bounded(1 / x / machine().bandwidth, 0.01, 1));
  }

  // Seconds of the core at a rate of 1, from the model itself.
  steptime::Core core_of(const Machine& at, const AttentionTime& time) const {
    steptime::Job job;
    job.length = time.length;
    job.micro_batch = time.batch;
    job.width = measured_.cuda ? 2 : 4;
    return steptime::attention_core(at, job, time.heads, time.head_dim);
  }

  void attention() {
    Machine unit = machine();
    unit.rate.attention = unit.rate.attention_backward = 1;
    if (!measured_.cuda) {  // devices' lengths are long
      unit.rate.short_sequence = 0;
      std::vector<Sample> samples;
      for (const AttentionTime& time : measured_.attention) {
        const double core = core_of(unit, time).forward;
        samples.push_back({core, core / time.length, time.forward});
      }
      const Line line = fit_line(samples);
      if (line.x <= 0) return;
      set("rate.short_sequence", machine().rate.short_sequence, ratio_of(line, kLongestSequence));
      unit.rate.short_sequence = machine().rate.short_sequence;
    }
    std::vector<Sample> there, back;
    for (const AttentionTime& time : measured_.attention) {
      const steptime::Core core = core_of(unit, time);
      there.push_back({core.forward, 0, time.forward});
      back.push_back({core.backward, 0, time.backward});
    }
    const double forward = fit_line(there).x, backward = fit_line(back).x;
    if (forward <= 0 || backward <= 0) return;
    set("rate.attention", machine().rate.attention, bounded(1 / forward, 0.001, 1));
    set("rate.attention_backward", machine().rate.attention_backward,
        bounded(1 / backward / machine().rate.attention, 0.05, 5));
  }

  // What a layer takes beyond its products and attention is for the kernels that move bytes.
  void layers() {
    if (measured_.layers.size() < 2) return;
    Machine unit = machine();
    unit.rate.elementwise = 1;
    const double took = seconds_a_layer();
    const steptime::LayerTime at = layer_of(unit);
    const steptime::Parts &f = at.forward, &b = at.backward;
    const double left = took - f.products - b.products - f.attention - b.attention,
                 least = kLeastElementwise * took;
    double share = (f.elementwise + b.elementwise) / std::max(left, least);
    if (took <= 0 || share <= 0) return;
    const bool noise = left < least;
    if (share > 1) {  // caches give more than the memory
      machine().bandwidth *= share;
      share = 1;
      if (noise) take("device.bandwidth", true);
    }
    const Bounded found = bounded(share, 0.01, 1);
    set("rate.elementwise", machine().rate.elementwise, {found.value, found.beyond || noise});
  }

  // Clipping and AdamW, of bytes as a plan counts them.
  void updated() {
    for (const MovedTime& time : measured_.moved)
      if (time.kernel == "optimizer" && time.seconds > 0)
        set("rate.optimizer", machine().rate.optimizer,
            bounded(time.bytes / time.seconds / machine().bandwidth, 0.01, 10));
  }

  double seconds_a_layer() const {
    const ModelTime &few = measured_.layers.front(), &many = measured_.layers.back();
    return (many.forward + many.backward - few.forward - few.backward) / (many.layers - few.layers);
  }
  steptime::LayerTime layer_of(const Machine& at) const {
    return model_layer(at, measured_.layers.back());
  }

  // How much faster a rank is while the others of its host wait.
  void alone() {
    if (shipped_.same_device) return;
    machine().overlap.alone = 1;
    if (measured_.alone <= 0) return;
    double together = 0;
    for (const ProductTime& time : measured_.products)
      if (time.precision == main() && !time.backward) together = time.seconds;
    if (together <= 0) return;
    // A rank has a core to itself then, or the memory that all had.
    const double most = measured_.cores_shared ? measured_.ranks_a_core : measured_.ranks_per_host;
    // At 1 nothing is gained, as it may be.
    const double gain = together / measured_.alone;
    set("overlap.alone", machine().overlap.alone, {std::clamp(gain, 1.0, most), gain > most});
  }

  void launches() {
    if (measured_.launches.size() < 2) return;
    const ModelTime &few = measured_.launches.front(), &many = measured_.launches.back();
    const double layers = many.layers - few.layers;
    auto a_layer = [&](double seconds) { return bounded(seconds / layers, 0, 1); };
    set("host.layer_forward", machine().host.layer_forward, a_layer(many.forward - few.forward));
    set("host.layer_backward", machine().host.layer_backward,
        a_layer(many.backward - few.backward));
  }

  // Where collectives share the cores nothing hides them.
  void beside() {
    if (!measured_.cuda || !kappa_of(measured_.beside)) return;
    set("overlap.kappa", machine().overlap.kappa, lost_beside(measured_.beside));
  }

  void sources_of_the_rest() {
    const std::vector<std::string>& guessed = shipped_.machine.guessed;
    const bool one_host = measured_.hosts <= 1;
    for (const steptime::Figure& figure : steptime::figures_of(machine())) {
      const std::string key = figure.key();
      const bool may_lack = key == "peak.fp8" || key == "rate.product_fp8" || key == "peak.tf32";
      // Without them older kernels are as fast as the one that was measured.
      if (!shipped_.same_device && (key == "rate.attention_fa2" || key == "rate.attention_triton"))
        continue;
      if (key == "overlap.alone" && !out_.sources.contains(key)) continue;  // 1: nothing is gained
      // Without them messages take the ring's rate.
      if (key.starts_with("network.send_") && !shipped_.machine.sources.contains(key) &&
          !out_.sources.contains(key))
        continue;
      if (out_.sources.contains(key) || (may_lack && *figure.to == 0)) continue;
      const std::string of = "as shipped for " + shipped_.machine.name;
      const bool network = key.starts_with("network.");
      if (!shipped_.same_device || std::ranges::find(guessed, key) != guessed.end())
        guess(key, (network && measured_.ranks <= 1 ? "one rank was measured, "
                    : network && one_host           ? "one host was measured, "
                                                    : "") +
                       of);
      else
        out_.sources[key] = of;
    }
  }

  void points() {
    const Machine& m = machine();
    for (const ProductTime& time : measured_.products) {
      double predicted = 0;
      for (const Product& p : products_of(time))
        predicted += steptime::seconds_of(m, p, time.precision);
      auto size = [](double n) { return text::whole_number(n); };
      const Product& p = time.product;
      out_.points.push_back({std::string("product ") +
                                 (time.precision == Precision::full ? "float32" : "bfloat16") +
                                 (time.backward ? ", backward" : ""),
                             size(p.rows) + " x " + size(p.columns) + " x " + size(p.inner),
                             time.seconds, predicted});
    }
    for (const MovedTime& time : measured_.moved)
      out_.points.push_back({time.kernel, report::human_bytes(std::llround(time.bytes)),
                             time.seconds,
                             time.kernel == "optimizer" ? steptime::update(m, time.bytes)
                                                        : steptime::elementwise(m, time.bytes)});
    for (const AttentionTime& time : measured_.attention) {
      const steptime::Core core = core_of(m, time);
      const std::string size = text::whole_number(time.length) + " tokens";
      out_.points.push_back({"attention", size, time.forward, core.forward});
      out_.points.push_back({"attention, backward", size, time.backward, core.backward});
    }
    if (measured_.layers.size() > 1) {
      const ModelTime& model = measured_.layers.back();
      const steptime::LayerTime at = layer_of(m);
      out_.points.push_back({"a layer, both ways",
                             text::whole_number(model.batch * model.length) + " tokens of " +
                                 text::whole_number(model.hidden),
                             seconds_a_layer(), at.forward.sum() + at.backward.sum()});
    }
    if (out_.measured("overlap.kappa"))
      out_.points.push_back({"products beside all-gathers",
                             "of " + doctor::time_text(measured_.beside.gathers),
                             measured_.beside.beside,
                             measured_.beside.alone + m.overlap.kappa * measured_.beside.gathers});
    for (Point& point : network_points(measured_, m)) out_.points.push_back(std::move(point));
  }

  const Measured& measured_;
  const Shipped& shipped_;
  std::string by_, at_bound_;  // sources
  Fitted out_;
};

}  // namespace

steptime::LayerTime model_layer(const steptime::Machine& machine, const ModelTime& model) {
  steptime::Shape shape;
  shape.hidden = model.hidden;
  shape.layers = 1;
  shape.heads = model.heads;
  shape.kv_heads = model.kv_heads;
  shape.head_dim = model.hidden / model.heads;
  shape.ffn = model.ffn;
  steptime::Job job;
  job.micro_batch = model.batch;
  job.length = model.length;
  job.width = 4;
  job.fusion = steptime::Fusion::fused;
  return steptime::layer_time(machine, shape, job);
}

std::optional<double> kappa_of(const BesideTime& time) {
  if (time.alone <= 0 || time.beside <= 0 || time.gathers <= 0 || time.gathers > time.alone)
    return std::nullopt;
  return lost_beside(time).value;
}

Bounded bounded(double found, double least, double most) {
  return {std::clamp(found, least, most), found < least || found > most};
}

bool Fitted::is_from(const std::string& key, std::string_view begin) const {
  const auto found = sources.find(key);
  return found != sources.end() && found->second.starts_with(begin);
}

Fitted fit(const Measured& measured, const Shipped& shipped, const std::string& when,
           const std::string& where) {
  return Fit(measured, shipped, when, where).run();
}

}  // namespace meshwright::calibrate
