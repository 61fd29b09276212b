// What a run of a machine that is faster, or slower, than its file says gives back.
#include "apps/performance/calibrate/report.h"

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

#include "apps/performance/calibrate/tests/made_up.h"
#include "apps/performance/steptime/machine.h"
#include "meshwright/error.h"

namespace meshwright::calibrate {
namespace {

using doctest::Approx;
using steptime::Machine;
using steptime::Prediction;

Prediction step_on(const Machine& machine) {
  const steptime::Shape shape = small_shape();
  steptime::Job job;
  job.ranks = job.ranks_per_host = 4;
  job.tp = 2;
  job.length = 512;
  job.micro_batch = 4;
  job.width = machine.overlap.adds ? 4 : 2;
  return steptime::predict(machine, shape, job);
}

Machine ours() {
  Machine m = cpu_of(2e11);
  m.network.bus = 0.4e9;  // so that exchanges are a good part of the step
  for (const steptime::Figure& figure : steptime::figures_of(m))
    if (figure.needed || *figure.to != 0) m.sources[figure.key()] = "measured by somebody";
  m.sources["peak.bf16"] = "guessed: as float32";
  return m;
}
Machine shipped_h100() {
  return steptime::read_machine(MESHWRIGHT_SOURCE_DIR "/configs/machines/h100.toml");
}

RunTime run_on(const Machine& truth, bool tells_waits) {
  const Prediction step = step_on(truth);
  RunTime out;
  out.run = "runs/first";
  out.machine = "ours.toml";
  out.seconds = step.seconds;
  if (tells_waits) out.exposed = exposed_of(step.parts);
  return out;
}

TEST_CASE("two factors come back from a step and what ranks waited in it") {
  for (const double computing : {0.3, 0.8, 1.7})
    for (const double network : {0.4, 1.0, 2.5}) {
      CAPTURE(computing);
      CAPTURE(network);
      const FromRun found =
          fit_run(ours(), run_on(scaled(ours(), computing, network), true), step_on, "2026-11-27");
      CHECK(found.computing == Approx(computing).epsilon(0.01));
      REQUIRE(found.network.has_value());
      CHECK(*found.network == Approx(network).epsilon(0.01));
      CHECK(found.fitted.machine.peak_fp32 == Approx(2e11 * computing).epsilon(0.01));
      CHECK(found.fitted.machine.bandwidth == Approx(9e9 * computing).epsilon(0.01));
      CHECK(found.fitted.machine.network.bus == Approx(0.4e9 * network).epsilon(0.01));
      CHECK(found.fitted.machine.network.step_inside == Approx(40e-6 / network).epsilon(0.01));
    }
}

TEST_CASE("without that the network stays as it was, and the file predicts the step") {
  RunTime run = run_on(scaled(ours(), 0.6, 0.5), false);
  SUBCASE("nobody knows what ranks waited") {}
  SUBCASE("ranks wait for work, too") {
    run.exposed = run.seconds / 3;
    run.waits_for_work = true;
  }
  SUBCASE("they waited longer than any network explains") { run.exposed = run.seconds * 0.999; }
  const FromRun found = fit_run(ours(), run, step_on, "2026-11-27");
  CHECK(!found.network.has_value());
  CHECK(!found.left.empty());
  CHECK(found.computing < 0.6);  // what the network lost is laid upon it
  CHECK(found.fitted.machine.network.bus == 0.4e9);
  const std::map<std::string, std::string>& sources = found.fitted.sources;
  CHECK(sources.at("network.bus") == "measured by somebody");
  CHECK(sources.at("peak.fp32").starts_with("from a run: runs/first, 0."));
  CHECK(sources.at("peak.fp32").ends_with(" times that of ours.toml, 2026-11-27"));
  CHECK(sources.at("peak.bf16").starts_with("guessed: as the peak that runs/first uses, 0."));
  CHECK(sources.at("rate.product") == "measured by somebody");
  const Machine read =
      steptime::parse_machine(steptime::machine_text(found.fitted.machine, sources, ""), "x.toml");
  CHECK(step_on(read).seconds == Approx(run.seconds).epsilon(2e-3));
  CHECK(read.guessed == std::vector<std::string>{"peak.bf16"});
}

TEST_CASE("a figure that was measured at a bound is still one, whatever a run says") {
  Machine m = ours();
  for (const char* key : {"device.bandwidth", "network.bus"})
    m.sources[key] = std::string(steptime::kAtBound) + " by meshwright calibrate, 2026-11-26, host";
  const FromRun found = fit_run(m, run_on(scaled(m, 0.6, 1), false), step_on, "2026-11-27");
  REQUIRE(!found.network.has_value());
  const std::map<std::string, std::string>& sources = found.fitted.sources;
  CHECK(sources.at("device.bandwidth")
            .starts_with("measured at a bound, then from a run: runs/first, 0."));
  CHECK(sources.at("network.bus") == m.sources.at("network.bus"));
  const Machine read =
      steptime::parse_machine(steptime::machine_text(found.fitted.machine, sources, ""), "x.toml");
  CHECK(read.at_bound == std::vector<std::string>{"device.bandwidth", "network.bus"});
}

TEST_CASE("few exchanges say nothing of a network") {
  Machine fast = ours();
  fast.network.bus = fast.network.nic = 1e13;
  fast.network.step_inside = fast.network.step_outside = 0;
  const FromRun found = fit_run(fast, run_on(scaled(fast, 1.5, 1), true), step_on, "2026-11-27");
  CHECK(!found.network.has_value());
  CHECK(found.left.find("twentieth") != std::string::npos);
  CHECK(found.computing == Approx(1.5).epsilon(0.01));
}

TEST_CASE("of a device its maker's peaks and its host's launches stay") {
  const Machine before = shipped_h100();
  Machine after = scaled(before, 0.5, 1);
  CHECK(after.peak_bf16 == before.peak_bf16);
  CHECK(after.bandwidth == before.bandwidth);
  CHECK(after.host.layer_forward == before.host.layer_forward);
  CHECK(after.rate.product == Approx(before.rate.product / 2));
  CHECK(after.rate.attention_fa2 == Approx(before.rate.attention_fa2 / 2));
  CHECK(after.rate.unfused == before.rate.unfused);  // a share of products
  // A message's latency that no file says stays as the model has it, which writes none.
  CHECK(scaled(before, 1, 0.5).network.send_latency_inside == before.network.send_latency_inside);
  CHECK(scaled(ours(), 1, 0.5).network.send_latency_inside == Approx(50e-6).epsilon(1e-12));
  CHECK(scaled(ours(), 1, 0.5).network.send_inside == Approx(0.45e9));
  after = scaled(before, 3, 1);
  CHECK(after.rate.elementwise == 1);  // no more than there is
}

TEST_CASE("a step that no factor from 1/4 to 4 explains is refused, with both times") {
  struct Row {
    double times;
    const char* says;
  };
  for (const Row& row : {Row{5.5, "with 1/4"}, Row{0.1, "with 4 it"}}) {
    RunTime run = run_on(ours(), false);
    run.seconds *= row.times;
    try {
      fit_run(ours(), run, step_on, "2026-11-27");
      FAIL("not refused");
    } catch (const Error& error) {
      CAPTURE(error.message());
      CHECK(error.code() == ErrorCode::out_of_range);
      CHECK(error.message().find(row.says) != std::string::npos);
      CHECK(error.helps().size() == 2);
    }
  }
}

}  // namespace
}  // namespace meshwright::calibrate
