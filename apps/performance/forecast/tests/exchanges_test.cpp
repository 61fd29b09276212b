#include "apps/performance/forecast/exchanges.h"

#include "apps/performance/steptime/kernels.h"
#include "planned.h"

namespace meshwright::forecast {
namespace {

using doctest::Approx;

TEST_CASE("an all-reduce of tp may be in the switch, and a small one over hosts is a tree") {
  const steptime::Machine machine = h100();
  // 10 of 1 GB over 8 ranks of a host: 2 (7 steps + 7/8 GB over 1.29 times the bus).
  const std::vector<WireRow> large = {{"tp", "all_reduce", 10, 17'500'000'000},
                                      {"cp", "all_reduce", 99, 17'500'000'000}};
  CHECK(seconds_of_rows(machine, large, "tp", {8, 1, 8}) ==
        Approx(10 * 2 * (7 * 3.3e-6 + 0.875e9 / (1.29 * 362e9))));
  // 1 MB over 8 hosts of 8: 4 (3 + 3 + 1) steps of 3.3 * 7/8 + 6.151 / 8 us, 2.1 MB over the bus.
  const std::vector<WireRow> small = {{"tp", "all_reduce", 1, 1'968'750}};
  CHECK(seconds_of_rows(machine, small, "tp", {64, 1, 8}) ==
        Approx(28 * 3.656375e-6 + 2.1e6 / 362e9));
  // What is gathered is a ring: 3 steps each.
  const std::vector<WireRow> gathered = {{"tp", "all_gather", 2, 3'000'000}};
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
  auto rows = [](int64_t unit) {
    return std::vector<WireRow>{{"cp", "send", 18, 2 * 3 * 4 * unit}};
  };
  auto all = [&](int64_t unit) { return 18 * 3.3e-6 + 24 * static_cast<double>(unit) / 362e9; };
  auto took = [&](int64_t unit, bool ring) {
    return context_seconds(machine, rows(unit), shape, job, ring);
  };
  CHECK(took(1'000'000, true) == Approx(0.15 * all(1'000'000)));
  CHECK(took(1'000'000'000, true) ==
        Approx(1.15 * all(1'000'000'000) - 2 * (core.forward + core.backward)));
  CHECK(took(1'000'000, false) == Approx(all(1'000'000)));
  // Full recomputation sends and computes the forward once more.
  job.recompute = steptime::Recompute::full;
  const std::vector<WireRow> again = {{"cp", "send", 24, 2 * 3 * 5'000'000'000}};
  CHECK(context_seconds(machine, again, shape, job, true) ==
        Approx(1.15 * (24 * 3.3e-6 + 30e9 / 362e9) - 2 * (2 * core.forward + core.backward)));
  machine.overlap.adds = true;  // nothing lies beside anything where cores are shared
  job.recompute = steptime::Recompute::none;
  CHECK(took(1'000'000, true) == Approx(all(1'000'000)));
}

TEST_CASE("an all-reduce among the ranks that share a shard costs both its ways") {
  Planned one = planned_8b(8, {});
  const DataMoved before = data_moved(one.plan);
  CHECK(shard_ranks(one.plan) == 8);
  CHECK(before.summed == 0);
  REQUIRE(before.reduced > 0);
  // As somebody's strategy may do it that gathers parameters and reduces whole gradients.
  for (WireRow& row : one.plan.footprint->wire)
    if (row.op == "reduce_scatter") {
      row.op = "all_reduce";
      row.bytes *= 2;
    }
  const DataMoved after = data_moved(one.plan);
  CHECK(after.reduced == Approx(2 * before.reduced));
  CHECK(after.summed == 0);
  CHECK(after.gathered == before.gathered);
  for (WireRow& row : one.plan.footprint->wire)
    if (row.op == "all_gather") row.op = "broadcast";  // of what each has updated
  CHECK(shard_ranks(one.plan) == 8);
  CHECK(data_moved(one.plan).gathered == before.gathered);
  // Without gathers they are copies, whatever the mesh calls its axes.
  std::erase_if(one.plan.footprint->wire, [](const WireRow& row) { return row.op == "broadcast"; });
  CHECK(shard_ranks(one.plan) == 1);
  CHECK(data_moved(one.plan).summed == Approx(before.reduced));
  CHECK(data_moved(one.plan).reduced == 0);
}

}  // namespace
}  // namespace meshwright::forecast
