// A strategy that counts its memory itself, searched.
#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/performance/forecast/forecast.h"
#include "apps/performance/forecast/layouts.h"
#include "meshwright/strategy.h"
#include "planned.h"

namespace meshwright::forecast {
namespace {

// Copies, of which each rank keeps gradients and states of its slice alone: its own cost says so.
class Sliced final : public Strategy {
 public:
  MeshPlan plan_mesh(const MeshRequest& request) const override {
    constexpr std::array<std::string_view, 3> kRefused = {"ep", "cp", "pp"};
    refuse_sizes(request, "sliced", kRefused);
    return plan_sharded_mesh(request);
  }
  ShardingPlan plan_sharding(const ShardingRequest& request) const override {
    ShardingPlan plan = Strategy::plan_sharding(request);
    const Footprint copies = footprint_of(request, plan);
    OwnCost& own = plan.own_cost.emplace(OwnCost{copies.bytes, copies.schedule, true});
    own.bytes.activations = 0;
    own.bytes.gradients /= request.mesh.dp;
    own.bytes.optimizer /= request.mesh.dp;
    std::erase_if(own.schedule,
                  [](const Communication& row) { return !row.axis.starts_with("dp"); });
    for (Communication& row : own.schedule) row.op = "reduce_scatter";
    return plan;
  }
};

// Llama 3 8B, where it has taken the place of fsdp2.
std::optional<plan::Job> sliced_job(const std::vector<std::string>& settings, Diagnostics& said) {
  std::vector<std::string> sets = {"distributed.dp_replicate_size=1", "distributed.tp_size=1",
                                   "distributed.sequence_parallel=false"};
  sets.insert(sets.end(), settings.begin(), settings.end());
  std::optional<plan::Job> job =
      plan::load_job({.file = MESHWRIGHT_SOURCE_DIR "/configs/hsdp_tp.toml",
                      .sets = std::move(sets),
                      .environment = {}},
                     said);
  if (job && job->strategy.info->name == "fsdp2")
    job->strategy.strategy = std::make_shared<Sliced>();
  return job;
}

TEST_CASE("a strategy that counts its memory itself is searched by that count") {
  Diagnostics said;
  std::optional<plan::Job> job = sliced_job({}, said);
  REQUIRE(said.ok());
  REQUIRE(job.has_value());

  // Of the others the plan says it all.
  const std::vector<steptime::Way> ways = strategy_ways(*job, trained_model(*job), {}, 16);
  CHECK(ways.size() > 1);
  for (const steptime::Way& way : ways) {
    CAPTURE(way.strategy);
    CHECK(way.own.empty() == (way.strategy != "fsdp2"));
    if (way.own.empty()) continue;
    CHECK(way.own.size() == 5);  // 1, 2, 4, 8 and 16 ranks
    CHECK(way.own.at(1) == steptime::OwnCount{});
    CHECK(way.own.at(16).once < way.own.at(2).once);
    CHECK(way.own.at(16).updated == doctest::Approx(1.0 / 16));
  }

  // 16 bytes a parameter and a copy in bfloat16 would be more than the device has.
  Wanted wanted;
  wanted.world_size = 16;
  wanted.fixed = {{"tp_size", 1}};
  wanted.most = 8;
  wanted.reload = sliced_job;
  const Found found = search(
      *job, steptime::find_machine("h200x8", MESHWRIGHT_SOURCE_DIR "/configs/machines"), wanted);
  REQUIRE(found.forecasts.size() == found.result.best.size());
  size_t own = 0;
  for (size_t i = 0; i < found.forecasts.size(); ++i) {
    if (found.result.best[i].strategy != "fsdp2") continue;
    ++own;
    CHECK(found.forecasts[i].memory <= found.memory);
  }
  CHECK(own > 0);
}

TEST_CASE("a forecast goes by the rows of a strategy's own cost") {
  Diagnostics said;
  std::optional<plan::Job> job = sliced_job({}, said);
  REQUIRE(said.ok());
  REQUIRE(job.has_value());
  const plan::JobPlan plan = plan::make_plan(*job, {16, 0, false});
  const DataMoved moved = data_moved(plan);
  CHECK(moved.reduced > 0);
  CHECK(moved.summed == 0);
  CHECK(shard_ranks(plan.footprint->schedule) == 16);
}

}  // namespace
}  // namespace meshwright::forecast
