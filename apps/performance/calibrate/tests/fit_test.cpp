// Times that a machine of known figures would have give these figures again.
#include "apps/performance/calibrate/fit.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <boost/json/value.hpp>
#include <cmath>
#include <optional>
#include <utility>

#include "apps/performance/calibrate/report.h"
#include "apps/performance/calibrate/tests/made_up.h"
#include "apps/performance/steptime/machine.h"
#include "apps/performance/steptime/predict.h"
#include "meshwright/error.h"

namespace meshwright::calibrate {
namespace {

using doctest::Approx;

// What the fit starts from: wrong in all that is measured.
Shipped other_cpu() {
  steptime::Machine m = cpu_of(0.5e11);
  m.name = "CPU core of a cloud Xeon";
  m.bandwidth = 3e9;
  m.rate.product = 0.8;
  m.rate.short_inner = 200;
  m.rate.attention = 0.1;
  m.network.bus = 9e9;
  m.network.nic = 9e9;
  m.network.step_inside = m.network.step_outside = 1e-3;
  m.network.send_inside = m.network.send_outside = 0;
  m.network.send_latency_inside = m.network.send_latency_outside = 15e-6;
  m.host = {1e-3, 1e-3, 1e-3};
  m.guessed = {"overlap.kappa"};
  return {m, false};
}

steptime::Machine h100() {
  return steptime::read_machine(MESHWRIGHT_SOURCE_DIR "/configs/machines/h100.toml");
}

void check_cpu(const steptime::Machine& found, const steptime::Machine& truth, double within) {
  auto same = [&](double a, double b) { return a == Approx(b).epsilon(within); };
  CHECK(same(found.peak_fp32 * found.rate.product, truth.peak_fp32 * truth.rate.product));
  CHECK(same(found.peak_bf16 * found.rate.product, truth.peak_bf16 * truth.rate.product));
  CHECK(same(found.rate.short_inner, truth.rate.short_inner));
  CHECK(same(found.bandwidth * found.rate.elementwise, truth.bandwidth * truth.rate.elementwise));
  CHECK(same(found.peak_fp32 * found.rate.attention, truth.peak_fp32 * truth.rate.attention));
  CHECK(same(found.rate.attention_backward, truth.rate.attention_backward));
  CHECK(same(found.bandwidth * found.rate.optimizer, truth.bandwidth * truth.rate.optimizer));
  // A short sequence takes as long, whatever the noise of how much each figure says.
  CHECK(same(256 / (256 + found.rate.short_sequence), 256 / (256 + truth.rate.short_sequence)));
  CHECK(same(found.network.bus, truth.network.bus));
  CHECK(same(found.network.step_inside, truth.network.step_inside));
  CHECK(same(found.network.nic * found.network.nic_attained,
             truth.network.nic * truth.network.nic_attained));
  CHECK(same(found.network.step_outside, truth.network.step_outside));
  CHECK(same(found.network.send_inside, truth.network.send_inside));
  CHECK(same(found.network.send_outside, truth.network.send_outside));
  CHECK(same(1e6 * found.network.send_latency_inside, 1e6 * truth.network.send_latency_inside));
  CHECK(same(1e6 * found.network.send_latency_outside, 1e6 * truth.network.send_latency_outside));
  CHECK(same(found.overlap.alone, truth.overlap.alone));
  CHECK(same(found.host.layer_forward, truth.host.layer_forward));
  CHECK(same(found.host.layer_backward, truth.host.layer_backward));
}

TEST_CASE("two coefficients are found again, neither of them below 0") {
  const std::vector<Sample> exact = {{1, 4, 14}, {2, 1, 7}, {5, 0, 10}};
  Line line = fit_line(exact);
  CHECK(line.x == Approx(2));
  CHECK(line.y == Approx(3));
  // The best of all would be x = 4, y = -1.
  const std::vector<Sample> below = {{1, 1, 3}, {1, 2, 2}};
  line = fit_line(below);
  CHECK(line.x == Approx(30.0 / 13));  // (1/3 + 1/2) / (1/9 + 1/4)
  CHECK(line.y == 0);
  const std::vector<Sample> alone = {{2, 0, 4}, {3, 0, 6}, {1, 0, 0}};
  CHECK(fit_line(alone).x == Approx(2));
  CHECK(fit_line({}).x == 0);
}

TEST_CASE("the figures of a processor come back, exactly without noise and nearly with it") {
  const steptime::Machine truth = cpu_of(2e11);
  for (const double noise : {0.0, 0.03}) {
    CAPTURE(noise);
    const Measured measured = measured_on(truth, false, Widths::both, 8, 2, noise);
    const Fitted found = fit(measured, other_cpu(), "2026-11-26", "host");
    // Noise of one sign in one kind of products is taken for a dearer inner dimension: products are
    // judged by the times they are predicted to take, below.
    if (noise == 0) check_cpu(found.machine, truth, 0.01);
    // What is left of a layer: noise of its products, twice as long, counts twice.
    CHECK(found.machine.bandwidth * found.machine.rate.elementwise ==
          Approx(5.4e9).epsilon(0.01 + 5 * noise));
    CHECK(found.machine.network.bus == Approx(1.3e9).epsilon(0.06));
    for (const Point& point : found.points) {
      CAPTURE(point.what);
      CAPTURE(point.size);
      if (point.what == "copy") continue;  // of which the model knows nothing
      CHECK(std::abs(point.error()) < 0.02 + 2.5 * noise);
    }
    CHECK(found.points.size() > 30);
    CHECK(found.machine.network.ranks_per_host == 4);
    CHECK(found.machine.overlap.adds);
    for (const char* key : {"network.nic", "network.send_inside", "network.send_outside",
                            "network.send_latency_inside", "network.send_latency_outside"})
      CHECK(found.sources.at(key) == "measured by meshwright calibrate, 2026-11-26, host");
    CHECK(found.sources.at("overlap.kappa").starts_with("guessed: as shipped for CPU core"));
  }
}

TEST_CASE("what was not measured keeps its value, and says whose it is") {
  const steptime::Machine truth = cpu_of(2e11);
  const Fitted found =
      fit(measured_on(truth, false, Widths::full, 1, 1), other_cpu(), "2026-11-26", "host");
  CHECK(found.machine.network.bus == 9e9);
  CHECK(found.sources.at("network.bus").starts_with("guessed: one rank was measured"));
  CHECK(found.sources.at("peak.bf16").starts_with("guessed"));
  // As much less than float32 as it was shipped to be.
  CHECK(found.machine.peak_bf16 == Approx(found.machine.peak_fp32 / 4));
  CHECK(found.measured("peak.fp32"));
  CHECK(!found.measured("network.bus"));
  CHECK(found.machine.overlap.alone == 1);  // nobody is beside it
  CHECK(!found.sources.contains("overlap.alone"));
  CHECK(found.machine.network.send_inside == 0);  // messages take the ring's rate
  CHECK(!found.sources.contains("network.send_inside"));
  CHECK(!found.sources.contains("network.send_latency_inside"));
  const Fitted two =
      fit(measured_on(truth, false, Widths::half, 2, 1), other_cpu(), "2026-11-26", "host");
  CHECK(two.measured("network.bus"));
  CHECK(two.sources.at("network.nic").starts_with("guessed: one host was measured"));
  CHECK(two.measured("network.send_inside"));
  CHECK(!two.sources.contains("network.send_outside"));
  CHECK(!two.sources.contains("network.send_latency_outside"));
  CHECK(two.measured("peak.bf16"));
  CHECK(!two.measured("peak.fp32"));
}

TEST_CASE("kernels that caches feed are faster than the memory") {
  steptime::Machine truth = cpu_of(2e11);
  Measured measured = measured_on(truth, false, Widths::full, 2, 1);
  truth.bandwidth *= 4;  // 21.6e9 for a layer's kernels, where a copy of much memory has 9e9
  for (ModelTime& time : measured.layers) {
    const steptime::LayerTime layer = model_layer(truth, time);
    time.forward = 1e-4 + time.layers * layer.forward.sum();
    time.backward = 2e-4 + time.layers * layer.backward.sum();
  }
  const Fitted found = fit(measured, other_cpu(), "2026-11-26", "host");
  CHECK(found.machine.rate.elementwise == 1);
  // Products, which were measured beside less, leave a little less for it.
  CHECK(found.machine.bandwidth == Approx(21.6e9).epsilon(0.06));
}

TEST_CASE("a device that is shipped keeps its maker's peaks; shares of them are measured") {
  steptime::Machine truth = h100();
  truth.rate.product = 0.55;
  truth.rate.attention = 0.4;
  truth.rate.attention_backward = 0.7;
  truth.rate.elementwise = 0.7;
  truth.network.bus = 300e9;
  truth.network.in_switch = 1.2;
  truth.overlap.kappa = 0.31;
  const Measured measured = measured_on(truth, true, Widths::both, 16, 2);
  const Fitted found = fit(measured, {h100(), true}, "2026-11-26", "host");
  const steptime::Machine& m = found.machine;
  CHECK(m.peak_bf16 == h100().peak_bf16);
  CHECK(m.bandwidth == h100().bandwidth);
  CHECK(m.memory == h100().memory);
  CHECK(m.rate.product == Approx(0.55).epsilon(0.03));
  CHECK(m.rate.attention == Approx(0.4).epsilon(0.01));
  CHECK(m.rate.attention_backward == Approx(0.7).epsilon(0.01));
  CHECK(m.rate.short_sequence == h100().rate.short_sequence);
  CHECK(m.rate.elementwise == Approx(0.7).epsilon(0.01));
  CHECK(m.network.bus == Approx(300e9).epsilon(0.02));
  CHECK(m.network.in_switch == Approx(1.2).epsilon(0.03));
  CHECK(m.network.nic * m.network.nic_attained ==
        Approx(truth.network.nic * truth.network.nic_attained).epsilon(0.02));
  CHECK(!m.overlap.adds);
  CHECK(m.overlap.kappa == Approx(0.31).epsilon(1e-9));
  CHECK(found.measured("overlap.kappa"));
  CHECK(found.sources.at("peak.bf16") == "as shipped for NVIDIA H100 SXM 700 W");
  CHECK(found.measured("rate.product"));
  for (const char* key : {"peak.fp8", "peak.tf32"}) CHECK(found.sources.contains(key));
  // The same times on a device that nobody knows: peaks are what products attain.
  const Fitted unknown = fit(measured, {h100(), false}, "2026-11-26", "host");
  CHECK(unknown.machine.peak_bf16 * unknown.machine.rate.product ==
        Approx(truth.peak_bf16 * 0.55).epsilon(0.03));
  CHECK(unknown.machine.reported == std::vector<std::string>{truth.name});
  for (const char* key : {"peak.fp8", "peak.tf32"}) CHECK(!unknown.sources.contains(key));
}

TEST_CASE("what products lose to collectives beside them is a share of these") {
  const steptime::Machine truth = h100();
  struct Row {
    BesideTime time;
    std::optional<double> kappa;
  };
  for (const Row& row :
       {Row{{0.020, 0.023, 0.010}, 0.3}, Row{{0.020, 0.019, 0.010}, 0.0},
        Row{{0.020, 0.035, 0.010}, 1.0}, Row{{0.020, 0.030, 0.021}, std::nullopt},  // not hidden
        Row{{0, 0, 0}, std::nullopt}}) {
    CAPTURE(row.time.beside);
    const std::optional<double> found = kappa_of(row.time);
    REQUIRE(found.has_value() == row.kappa.has_value());
    if (found) CHECK(*found == Approx(*row.kappa));
    Measured measured = measured_on(truth, true, Widths::both, 2, 1);
    measured.beside = row.time;
    const Fitted fitted = fit(measured, {truth, true}, "2026-11-26", "host");
    CHECK(fitted.measured("overlap.kappa") == row.kappa.has_value());
    CHECK(fitted.machine.overlap.kappa == Approx(row.kappa.value_or(truth.overlap.kappa)));
  }
  // Of two ranks the slower one's.
  Measured mine = measured_on(truth, true, Widths::both, 2, 1), theirs = mine;
  theirs.beside.beside += 1e-3;
  mine.take_all({mine.times(), theirs.times()});
  CHECK(mine.beside.beside == theirs.beside.beside);
}

TEST_CASE("a figure that ends at the bound of what it may be says so, and is measured no less") {
  Measured measured = measured_on(cpu_of(2e11), false, Widths::both, 4, 1);
  const Fitted quiet = fit(measured, other_cpu(), "2026-11-26", "host");
  for (const auto& [key, source] : quiet.sources) {
    CAPTURE(key);
    CHECK(!quiet.at_bound(key));
  }
  // Six layers took less time than two, and a small message less than its share of a large one.
  std::swap(measured.launches.front().forward, measured.launches.back().forward);
  for (GroupTime& group : measured.groups)
    for (doctor::Collective& c : group.collectives) {
      if (c.op == "send/recv") continue;
      const auto g = static_cast<double>(c.ranks), bytes = static_cast<double>(c.bytes);
      const double small = (c.op == "all_reduce" ? 2 : 1) * kSmallMessage * (g - 1) / g;
      c.latency = 0.7 * c.seconds * small / bytes;
    }
  const Fitted loud = fit(measured, other_cpu(), "2026-11-26", "host");
  CHECK(loud.machine.host.layer_forward == 0);
  CHECK(loud.machine.network.step_inside == 0);
  for (const char* key : {"host.layer_forward", "network.step_inside"}) {
    CAPTURE(key);
    CHECK(loud.sources.at(key) == "measured at a bound by meshwright calibrate, 2026-11-26, host");
    CHECK(loud.at_bound(key));
    CHECK(loud.measured(key));
  }
  CHECK(!loud.at_bound("host.layer_backward"));
  CHECK(!loud.at_bound("network.bus"));
  // The file says it to whom reads it.
  const steptime::Machine read =
      steptime::parse_machine(steptime::machine_text(loud.machine, loud.sources, ""), "x.toml");
  CHECK(read.at_bound == std::vector<std::string>{"network.step_inside", "host.layer_forward"});
  // And what is printed to who measures.
  auto printed = [&](const Fitted& fitted) {
    return Report{measured, fitted, "ours.toml", 1}.text({false, false, 200});
  };
  CHECK(printed(loud).find("measured, at a bound: rough") != std::string::npos);
  CHECK(printed(loud).find("and rough: network.step_inside, host.layer_forward. ") !=
        std::string::npos);
  CHECK(printed(quiet).find("rough") == std::string::npos);
  const boost::json::object told = Report{measured, loud, "ours.toml", 1}.json();
  CHECK(told.at("figures").at("host.layer_forward").at("at_bound").as_bool());
  CHECK(!told.at("figures").at("network.bus").at("at_bound").as_bool());
}

TEST_CASE("a rank gains no more than a core of its own while the others of its host wait") {
  steptime::Machine truth = cpu_of(2e11);
  truth.overlap.alone = 3.2;
  Measured measured = measured_on(truth, false, Widths::both, 4, 1);
  CHECK(fit(measured, other_cpu(), "", "").machine.overlap.alone == Approx(3.2));
  measured.cores_shared = true;
  measured.ranks_a_core = 2;
  CHECK(fit(measured, other_cpu(), "", "").machine.overlap.alone == 2);
}

TEST_CASE("the file has each figure with its source, and its reader takes it") {
  const Measured measured = measured_on(cpu_of(2e11), false, Widths::both, 8, 2, 0.02);
  const Fitted found = fit(measured, other_cpu(), "2026-11-26", "ho\"st");
  const std::string text =
      steptime::machine_text(found.machine, found.sources, "Two\nlines of comment");
  CHECK(text.starts_with("# Two\n# lines of comment\nschema = 1\n"));
  const steptime::Machine read = steptime::parse_machine(text, "x.toml");
  CHECK(read.name == "a processor");
  CHECK(read.overlap.adds);
  CHECK(read.network.bus == Approx(found.machine.network.bus).epsilon(1e-3));
  CHECK(read.network.send_outside == Approx(found.machine.network.send_outside).epsilon(1e-3));
  CHECK(1e6 * read.network.send_latency_outside ==
        Approx(1e6 * found.machine.network.send_latency_outside).epsilon(1e-3));
  CHECK(read.rate.short_inner == Approx(found.machine.rate.short_inner).epsilon(1e-3));
  CHECK(read.host.layer_forward == Approx(found.machine.host.layer_forward).epsilon(1e-3));
  CHECK(std::ranges::find(read.guessed, "overlap.kappa") != read.guessed.end());
  CHECK(std::ranges::find(read.guessed, "network.bus") == read.guessed.end());
  // It predicts as the figures do.
  const steptime::Shape shape = small_shape();
  steptime::Job job;
  job.ranks = 4;
  job.ranks_per_host = 4;
  job.tp = 2;
  job.length = 256;
  job.width = 4;
  const double seconds = steptime::predict(read, shape, job).seconds;
  CHECK(seconds > 0);
  CHECK(seconds == Approx(steptime::predict(found.machine, shape, job).seconds).epsilon(2e-3));
  std::map<std::string, std::string> fewer = found.sources;
  fewer.erase("network.bus");
  CHECK_THROWS_AS(steptime::machine_text(found.machine, fewer, ""), Error);
}

TEST_CASE("of several ranks the slowest counts, and the least memory") {
  Measured mine = measured_on(cpu_of(2e11), false, Widths::full, 2, 1);
  Measured theirs = measured_on(cpu_of(1e11), false, Widths::full, 2, 1);
  theirs.memory = 1e9;
  const double fast = mine.products[0].seconds, slow = theirs.products[0].seconds,
               host = mine.groups[0].collectives[0].seconds;
  theirs.groups[0].collectives[0].seconds = host / 2;
  SUBCASE("each with cores of its own") {
    mine.take_all({mine.times(), theirs.times()});
    CHECK(mine.products[0].seconds == slow);
  }
  SUBCASE("where they share cores, what they do in a second is the mean") {
    mine.cores_shared = true;
    mine.take_all({mine.times(), theirs.times()});
    CHECK(mine.products[0].seconds == Approx(2 / (1 / fast + 1 / slow)).epsilon(1e-12));
  }
  CHECK(mine.groups[0].collectives[0].seconds == host);
  CHECK(mine.memory == 1e9);
}

TEST_CASE("collectives are measured inside each host, in pairs, and between places") {
  using Kind = GroupTime::Kind;
  struct Row {
    std::vector<int64_t> host;
    int64_t rank;
    std::vector<std::pair<Kind, std::vector<int64_t>>> groups;
  };
  for (const Row& row : {
           Row{{0}, 0, {}},
           Row{{0, 0}, 1, {{Kind::host, {0, 1}}}},
           Row{{0, 0, 0, 0}, 3, {{Kind::host, {0, 1, 2, 3}}, {Kind::pair, {2, 3}}}},
           Row{{0, 1}, 0, {{Kind::across, {0, 1}}}},
           Row{{0, 0, 2, 2}, 3, {{Kind::host, {2, 3}}, {Kind::across, {1, 3}}}},
           Row{{0, 1, 0, 1}, 2, {{Kind::host, {0, 2}}, {Kind::across, {2, 3}}}},
           Row{{0, 0, 2}, 2, {{Kind::all, {0, 1, 2}}}},
       }) {
    const std::vector<Ranks> found = groups_of(row.host, row.rank);
    REQUIRE(found.size() == row.groups.size());
    for (size_t i = 0; i < found.size(); ++i) {
      CHECK(found[i].kind == row.groups[i].first);
      CHECK(found[i].ranks == row.groups[i].second);
      CHECK(found[i].group.size == static_cast<double>(found[i].ranks.size()));
    }
  }
}

}  // namespace
}  // namespace meshwright::calibrate
