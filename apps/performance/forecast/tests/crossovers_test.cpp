// Which constant of the machine puts another layout of a search before the first.
#include <cstddef>

#include "apps/performance/forecast/layouts.h"
#include "planned.h"

namespace meshwright::forecast {
namespace {

using doctest::Approx;

Found found_of(const Forecast& first, const Forecast& second) {
  Found out;
  for (const Forecast* f : {&first, &second}) {
    steptime::Layout layout;
    layout.job = f->job;
    layout.predicted = f->time;
    layout.use = 0.5;
    out.result.best.push_back(layout);
    out.forecasts.push_back(*f);
  }
  return out;
}

// A step of 16,384 tokens of Llama 3 8B on a host, each layer cut over all ranks of it.
steptime::Job cut_over_a_host() {
  steptime::Job out;
  out.ranks = out.tp = 8;
  out.micro_batch = 2;
  out.length = 8192;
  out.fusion = steptime::Fusion::fused;
  out.loss = steptime::Loss::fused;
  return out;
}

steptime::Shape shape_8b() { return planned_8b(8, {}).on(h100()).shape; }

Forecast by_sizes(const steptime::Shape& shape, const steptime::Job& job) {
  Forecast out;
  out.machine = h100();
  out.shape = shape;
  out.job = job;
  out.time = steptime::predict(out.machine, shape, job);
  return out;
}

// The only one, but for what scales with `key` as the memory's rate does.
Crossover only(const Found& found, const std::string& key) {
  Crossover out;
  for (Crossover& crossover : crossovers_of(found)) {
    const bool element_wise = crossover.figures == std::vector<std::string>{"rate.elementwise"};
    CHECK((crossover.figures == std::vector<std::string>{key} || element_wise));
    if (!element_wise || key == "rate.elementwise") out = std::move(crossover);
  }
  REQUIRE(!out.name.empty());
  return out;
}

TEST_CASE("what one layout reads more of memory turns the order where memory is slower") {
  const steptime::Shape shape = shape_8b();
  steptime::Job reads = cut_over_a_host(), waits = reads;
  reads.optimizer_bytes = 60;
  waits.optimizer_bytes = 44;
  // 16 bytes of an eighth of the parameters at 0.8 of 3.35 TB/s, and a fourth longer than that.
  waits.beside_seconds = 1.25 * 16 * shape.parameters() / 8 / (0.8 * 3.35e12);
  const Found found = found_of(by_sizes(shape, reads), by_sizes(shape, waits));
  REQUIRE(found.forecasts[0].time.seconds < found.forecasts[1].time.seconds);
  const Crossover crossover = only(found, "device.bandwidth");
  CHECK(crossover.factor == Approx(0.8).epsilon(0.005));
  CHECK(crossover.factor < 0.8001);  // they have changed places there
  CHECK(crossover.name + " " + crossover.off == "memory 20% slower");
  CHECK(crossover.first == 2);

  // The other way round it is memory that must be faster, up to twice as fast.
  waits.beside_seconds /= 1.25 * 1.25;
  const Crossover back =
      only(found_of(by_sizes(shape, waits), by_sizes(shape, reads)), "device.bandwidth");
  CHECK(back.factor == Approx(1.25).epsilon(0.005));
  CHECK(back.off == "25% faster");
  waits.beside_seconds /= 2;
  CHECK(crossovers_of(found_of(by_sizes(shape, waits), by_sizes(shape, reads))).empty());
}

TEST_CASE(
    "exchanges of a plan are had again on the network that is off, tight layouts stay behind") {
  const steptime::Shape shape = shape_8b();
  const steptime::Machine machine = h100();
  // Half a second of gathers a step over the host's ring, beside as much and a fourth that is
  // given.
  const CommunicationSchedule rows{{.axis = "tp",
                                    .op = "all_gather",
                                    .ranks = 8,
                                    .count = 1,
                                    .payload = 181'000'000'000 / 7 * 8}};
  steptime::Job sends = cut_over_a_host(), given = sends;
  set_exchange_seconds(machine, shape, rows, sends);
  CHECK(sends.tp_seconds == Approx((0.5 + 7 * 3.3e-6) / shape.layers));
  given.tp_seconds = 1.25 * sends.tp_seconds;
  Forecast first = by_sizes(shape, sends);
  first.schedule = rows;
  Found found = found_of(first, by_sizes(shape, given));
  std::vector<Crossover> crossovers = crossovers_of(found);
  REQUIRE(crossovers.size() == 1);
  CHECK(crossovers[0].figures == std::vector<std::string>{"network.bus"});
  CHECK(crossovers[0].factor == Approx(0.8).epsilon(0.005));

  // A tight one ranks by 1.05 of its time.
  found.result.best[1].use = 0.9;
  const double rest = found.forecasts[0].time.seconds - 0.5;
  crossovers = crossovers_of(found);
  REQUIRE(crossovers.size() == 1);
  CHECK(crossovers[0].factor == Approx(0.5 / (1.05 * (rest + 0.625) - rest)).epsilon(0.01));
}

TEST_CASE("a step on another machine is what a plan would say of it there") {
  const Planned jobs[] = {
      planned_8b(64, {}),
      planned_8b(64, {"distributed.tp_size=4", "distributed.sequence_parallel=true"}),
      planned_8b(64, {"distributed.cp_size=4", "distributed.context.method=ring"}),
      planned_8b(64, {"distributed.cp_size=4", "distributed.context.method=all_gather"}),
      planned("hsdp_tp", 64, {}),
      planned("moe_ep", 32, {}),
      planned("pipeline_interleaved", 32, {}),
  };
  steptime::Machine slower = h100();
  slower.network.bus *= 0.3;
  slower.network.nic *= 0.3;
  slower.network.step_inside *= 20;
  slower.network.step_outside *= 20;
  steptime::Machine other = h100();
  other.peak_bf16 *= 2;
  other.rate.attention *= 0.5;
  other.bandwidth *= 0.5;
  for (const Planned& job : jobs) {
    const std::ptrdiff_t number = &job - jobs;
    CAPTURE(number);
    const Forecast here = job.on(h100());
    CHECK(predicted_on(h100(), here).seconds == here.time.seconds);
    for (const steptime::Machine* machine : {&slower, &other}) {
      const double there = job.on(*machine).time.seconds;
      CHECK(predicted_on(*machine, here).seconds == Approx(there).epsilon(1e-9));
      CHECK(there != here.time.seconds);
    }
  }
}

}  // namespace
}  // namespace meshwright::forecast
