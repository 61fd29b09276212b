#include "apps/performance/forecast/forecast.h"

#include "apps/performance/steptime/kernels.h"
#include "planned.h"

namespace meshwright::forecast {
namespace {

using doctest::Approx;

Communication row(const char* axis, const char* op, int64_t ranks, int64_t count, int64_t payload,
                  Communication::Phase phase = Communication::Phase::forward) {
  return {
      .phase = phase, .axis = axis, .op = op, .ranks = ranks, .count = count, .payload = payload};
}

TEST_CASE("an all-reduce of tp may be in the switch, and a small one over hosts is a tree") {
  const steptime::Machine machine = h100();
  // 10 of 1 GB over 8 ranks of a host: 2 (7 steps + 7/8 GB over 1.29 times the bus).
  const CommunicationSchedule large = {row("tp", "all_reduce", 8, 10, 1'000'000'000),
                                       row("cp", "all_reduce", 8, 99, 1'000'000'000)};
  CHECK(seconds_of_rows(machine, large, "tp", {8, 1, 8}) ==
        Approx(10 * 2 * (7 * 3.3e-6 + 0.875e9 / (1.29 * 362e9))));
  // 1 MB over 8 hosts of 8: 4 (3 + 3 + 1) steps of 3.3 * 7/8 + 6.151 / 8 us, 2.1 MB over the bus.
  const CommunicationSchedule small = {row("tp", "all_reduce", 64, 1, 1'000'000)};
  CHECK(seconds_of_rows(machine, small, "tp", {64, 1, 8}) ==
        Approx(28 * 3.656375e-6 + 2.1e6 / 362e9));
  // What is gathered is a ring: 3 steps each.
  const CommunicationSchedule gathered = {row("tp", "all_gather", 4, 2, 2'000'000)};
  CHECK(seconds_of_rows(machine, gathered, "tp", {4, 1, 8}) == Approx(6 * 3.3e-6 + 3e6 / 362e9));
}

TEST_CASE("of a ring of keys what exceeds attention counts, and 15% of all") {
  steptime::Machine machine = h100();
  steptime::Shape shape;
  shape.layers = 2;
  shape.heads = 32;
  shape.head_dim = 128;
  shape.hidden = 4096;
  steptime::Job job;
  job.cp = 4;
  job.length = 8192;
  const steptime::Core core = steptime::attention_core(machine, job, 32, 128);
  // Of each layer 3 messages in forward, 3 of keys and 3 of their gradients, twice as wide, in
  // backward.
  using Phase = Communication::Phase;
  auto rows = [](int64_t unit, int64_t forwards) {
    return CommunicationSchedule{row("cp", "send", 4, forwards * 2 * 3, unit),
                                 row("cp", "send", 4, 2 * 3, unit, Phase::backward),
                                 row("cp", "send", 4, 2 * 3, 2 * unit, Phase::backward)};
  };
  auto all = [&](int64_t unit) { return 18 * 3.3e-6 + 24 * static_cast<double>(unit) / 362e9; };
  auto took = [&](int64_t unit, bool ring) {
    return context_seconds(machine, rows(unit, 1), shape, job, ring);
  };
  CHECK(took(1'000'000, true) == Approx(0.15 * all(1'000'000)));
  CHECK(took(1'000'000'000, true) ==
        Approx(1.15 * all(1'000'000'000) - 2 * (core.forward + core.backward)));
  CHECK(took(1'000'000, false) == Approx(all(1'000'000)));
  // Full recomputation sends and computes the forward once more.
  job.recompute = steptime::Recompute::full;
  CHECK(context_seconds(machine, rows(1'000'000'000, 2), shape, job, true) ==
        Approx(1.15 * (24 * 3.3e-6 + 30e9 / 362e9) - 2 * (2 * core.forward + core.backward)));
  machine.overlap.adds = true;  // nothing lies beside anything where cores are shared
  job.recompute = steptime::Recompute::none;
  CHECK(took(1'000'000, true) == Approx(all(1'000'000)));
}

TEST_CASE("an all-reduce among the ranks that share a shard costs both its ways") {
  Planned one = planned_8b(8, {});
  const DataMoved before = data_moved(one.plan);
  CHECK(shard_ranks(one.plan.footprint->schedule) == 8);
  CHECK(before.summed == 0);
  REQUIRE(before.reduced > 0);
  // As somebody's strategy may do it that gathers parameters and reduces whole gradients.
  for (Communication& each : one.plan.footprint->schedule)
    if (each.op == "reduce_scatter") each.op = "all_reduce";
  const DataMoved after = data_moved(one.plan);
  CHECK(after.reduced == Approx(2 * before.reduced));
  CHECK(after.summed == 0);
  CHECK(after.gathered == before.gathered);
  for (Communication& each : one.plan.footprint->schedule)
    if (each.op == "all_gather") each.op = "broadcast";  // of what each has updated
  CHECK(shard_ranks(one.plan.footprint->schedule) == 8);
  CHECK(data_moved(one.plan).gathered == before.gathered);
  // Without gathers they are copies, whatever the mesh calls its axes.
  std::erase_if(one.plan.footprint->schedule,
                [](const Communication& each) { return each.op == "broadcast"; });
  CHECK(shard_ranks(one.plan.footprint->schedule) == 1);
  CHECK(data_moved(one.plan).summed == Approx(before.reduced));
  CHECK(data_moved(one.plan).reduced == 0);
}

}  // namespace
}  // namespace meshwright::forecast
