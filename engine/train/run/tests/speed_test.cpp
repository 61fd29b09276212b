// What a step's cost says of the ranks and of what they compute on.
#include "engine/train/run/speed.h"

#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>

#include "apps/performance/forecast/forecast.h"
#include "engine/job/plan.h"
#include "engine/train/run/tests/pipeline_layouts.h"
#include "engine/train/run/tests/small_run.h"
#include "engine/train/step/step_monitor.h"
#include "meshwright/parallel/testing.h"

#include <doctest/doctest.h>

namespace speed_test {

using namespace meshwright;
using namespace meshwright::train;
using Clock = std::chrono::steady_clock;

namespace {

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

}  // namespace

TEST_CASE("the rate of this machine's products is measured in a tenth of a second") {
  const auto begin = Clock::now();
  const double rate = measured_rate(4);
  CHECK(rate > 1e8);
  CHECK(rate < 1e14);
  CHECK(ms_since(begin) < 2000);  // on a machine that others use, too
}

TEST_CASE(
    "MFU is the model's operations by the formula of the forecast, over the peak of all ranks") {
  for (int64_t ranks : {1, 2}) {
    CAPTURE(ranks);
    run_ranks(ranks, [&](const std::shared_ptr<World>& world) {
      Rank rank({"ddp", ranks}, world);
      rank.initialize();
      rank.step();
      Speed speed(rank.job, rank.trainer, kLength);
      StepCost cost{.step_ms = 50}, slower{.step_ms = 100};
      speed.fill(cost, rank.trainer);
      speed.fill(slower, rank.trainer);
      CHECK(cost.mfu > 0);
      CHECK(cost.mfu < 1);
      CHECK(cost.mfu == doctest::Approx(2 * slower.mfu));
      CHECK(cost.ranks == ranks);
      const double flop = forecast::shape_of(*rank.trainer.plan().outline).flop_a_token(kLength) *
                          static_cast<double>(kBatch * kLength);
      // All ranks measured at once, which may be slower than one alone, now.
      const double peak = flop / 0.05 / cost.mfu / static_cast<double>(ranks);
      CHECK(peak < 4 * measured_rate(4));
      CHECK(peak > measured_rate(4) / 20);
    });
  }
  // A processor without instructions for 16 bits takes those of 32, then and now.
  CHECK(measured_rate(2) > measured_rate(4) / 4);
}

TEST_CASE("ranks that are faster than their peak show that it is wrong: no MFU from then on") {
  run_ranks(1, [&](const std::shared_ptr<World>& world) {
    Rank rank({"ddp", 1}, world);
    rank.initialize();
    const StepResult result = rank.step();
    Speed speed(rank.job, rank.trainer, kLength);
    StepCost impossible{.step_ms = 1e-9}, later{.step_ms = 50};
    speed.fill(impossible, rank.trainer);
    speed.fill(later, rank.trainer);
    CHECK(std::isnan(impossible.mfu));
    CHECK(std::isnan(later.mfu));
    const std::vector<std::string> told = speed.lines(rank.trainer, result);
    REQUIRE(!told.empty());
    CHECK(told[0].starts_with("notice: a step did "));
    for (const std::string& line : speed.lines(rank.trainer, result)) CHECK(line != told[0]);
  });
}

TEST_CASE("what is frozen has less of a backward, and MFU counts none for it") {
  const double length = 8;
  struct Row {
    const char* groups;
    // How many products of 2 operations an element there are, and how many operations of attention
    // a layer on average.
    std::vector<double> layers;
    double head, attention;
  };
  for (const Row& row :
       {Row{"[]", {3, 3, 3, 3}, 3, 12},
        Row{R"([{pattern = "*.0.*", frozen = true}])", {2, 3, 3, 3}, 3, 12},
        Row{R"([{pattern = "model.embed_tokens.*", frozen = true}])", {3, 3, 3, 3}, 3, 12},
        Row{R"([{pattern = "*embed*", frozen = true}, {pattern = "*.[01].*", frozen = true}])",
            {1, 1, 3, 3},
            3,
            8},
        Row{R"([{pattern = "*embed*", frozen = true}, {pattern = "*.[02].*", frozen = true},
                {pattern = "lm_head.*", frozen = true}])",
            {1, 3, 2, 3},
            2,
            10},
        Row{R"([{pattern = "lm_head.*", lr_factor = 2}, {pattern = "*", frozen = true}])",
            {1, 1, 1, 1},
            2,
            4}}) {
    CAPTURE(std::string(row.groups));
    TestFolder folder("frozen_flop");
    run_ranks(1, [&](const std::shared_ptr<World>& world) {
      Rank rank({.strategy = "ddp",
                 .ranks = 1,
                 .sets = {std::string("optimizer.group=") + row.groups},
                 .model = write_model(folder.path, kStaged)},
                world);
      const ModelOutline& outline = *rank.trainer.plan().outline;
      double expected = row.attention * 4 * length *
                        static_cast<double>(outline.attention_heads * outline.head_dim);
      for (const ParameterOutline& p : outline.parameters) {
        if (p.shape.size() != 2 || p.name.find("embed") != std::string::npos) continue;
        const size_t layer = p.name.find(".layers.");
        const double times = layer == std::string::npos
                                 ? row.head
                                 : row.layers.at(static_cast<size_t>(p.name[layer + 8] - '0'));
        expected += 2 * times * static_cast<double>(element_count(p.shape));
      }
      CHECK(forecast::shape_of(outline).flop_a_token(length) == doctest::Approx(expected));
    });
  }
}

TEST_CASE("a model without the sizes that the formula wants has no MFU") {
  Job job;
  for (const char* key :
       {"distributed.mp_policy.param_dtype", "distributed.mp_policy.output_dtype"})
    job.set(key, "\"float32\"");
  auto world = World::single();
  struct NetImpl : torch::nn::Module {
    NetImpl() { weight = register_parameter("weight", at::ones({4})); }
    at::Tensor weight;
  };
  Trainer trainer(job, world, std::make_shared<NetImpl>());
  Speed speed(job, trainer, 8);
  StepCost cost{.step_ms = 50};
  speed.fill(cost, trainer);
  CHECK(std::isnan(cost.mfu));
}

TEST_CASE(
    "a rank that is made slow is the slowest by what it sleeps, the others wait for it, and its "
    "host is named") {
  constexpr int64_t kSlow = 1;
  constexpr std::chrono::milliseconds kNap{110};
  struct Row {
    int64_t ranks, steps;
    std::vector<std::string> sets;
  };
  // Where the data's group is not everyone, times come with the votes.
  for (const Row& row : {Row{3, 24, {}}, Row{4, 3, {"distributed.tp_size=2"}}}) {
    CAPTURE(row.ranks);
    std::vector<std::vector<std::string>> said(static_cast<size_t>(row.ranks));
    std::vector<StepCost> last(static_cast<size_t>(row.ranks));
    run_ranks(row.ranks, [&](const std::shared_ptr<World>& world) {
      Rank rank({"fsdp2", row.ranks, row.sets}, world);
      rank.initialize();
      Speed speed(rank.job, rank.trainer, kLength);
      if (world->rank() == kSlow)
        rank.trainer.before_update([&] { std::this_thread::sleep_for(kNap); });
      const auto mine = static_cast<size_t>(world->rank());
      for (int64_t i = 0; i < row.steps; ++i) {
        const StepResult result = rank.step();
        StepCost cost{.step_ms = 200};
        speed.fill(cost, rank.trainer);
        if (i == 0) CHECK(cost.slowest_rank == -1);  // nothing is known of an update before
        for (std::string& line : speed.lines(rank.trainer, result))
          said[mine].push_back(std::move(line));
        last[mine] = cost;
      }
    });
    for (size_t rank = 0; rank < last.size(); ++rank) {
      CHECK(last[rank].slowest_rank == kSlow);
      CHECK(last[rank].slowest_ms > 50);
      CHECK(last[rank].slowest_ms < 2000);
      CHECK(last[rank].rank_work_ms_most - last[rank].rank_work_ms_least > 50);
      CHECK(last[rank].rank_work_ms <= last[rank].rank_work_ms_most);
      CHECK(last[rank].rank_work_ms >= last[rank].rank_work_ms_least);
      if (rank != kSlow) CHECK(last[rank].exposed_comm_ms > 50);
    }
    if (row.steps < SlowRanks::kSteps) continue;
    REQUIRE(said[0].size() == 1);
    CHECK(said[0][0].find("warning: rank 1 on host ") == 0);
    CHECK(said[0][0].find(" longer than the median of the others for 20 steps") !=
          std::string::npos);
  }
}

}  // namespace speed_test
