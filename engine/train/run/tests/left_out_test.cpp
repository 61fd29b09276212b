// run.skip_step_above_z: what a step on bad data does where it is left out, and where it is not.
#include <ATen/ops/full.h>

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

#include "engine/checkpoint/checkpoint.h"
#include "engine/train/run/tests/small_models.h"
#include "engine/train/run/tests/small_run.h"
#include "engine/train/step/optimizer.h"
#include "engine/train/step/step_monitor.h"
#include "meshwright/parallel/testing.h"

#include <doctest/doctest.h>

namespace left_out_test {

using namespace meshwright;

namespace {

constexpr int64_t kPoisoned = 23, kSteps = 26;
const std::string kOption = "run.skip_step_above_z=8",
                  kNoCheck = "distributed.megatron_fsdp.check_for_nan_in_grad=false";

// One step on the samples of Rank::step(), or on nothing but one token, again and again.
StepResult step(Rank& rank) {
  Trainer& trainer = rank.trainer;
  if (trainer.next_step() != kPoisoned) return rank.step();
  return trainer.step([&](int64_t, const at::Tensor& hidden) {
    return train::loss_of(trainer, rank.net,
                          at::full({trainer.local_batch(), kLength + 1}, 7, at::kLong), hidden);
  });
}

struct Course {
  std::vector<double> losses, scores;
  std::vector<int64_t> skipped;
  bool unchanged = true;  // the parameters, by the poisoned step
  int64_t updates = 0;
};

std::vector<at::Tensor> parameters_of(Rank& rank) {
  std::vector<at::Tensor> out;
  for (const ParallelParameter& p : rank.trainer.model().parameters())
    out.push_back(p.local.detach().clone());
  return out;
}

// What each rank saw. `from`: a checkpoint to go on from; `save`: where one is made after 21 steps.
std::vector<Course> courses(const Layout& layout, const std::string& from = "",
                            const std::string& save = "") {
  std::vector<Course> out(static_cast<size_t>(layout.ranks));
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    if (from.empty())
      rank.initialize();
    else
      rank.trainer.load(from);
    Course mine;
    while (rank.trainer.next_step() < kSteps) {
      const int64_t number = rank.trainer.next_step();
      if (number == 21 && !save.empty()) rank.trainer.save(save);
      const std::vector<at::Tensor> before = parameters_of(rank);
      const StepResult result = step(rank);
      const train::StepFacts& facts = train::monitor_of(rank.trainer).facts();
      mine.losses.push_back(result.loss);
      mine.scores.push_back(facts.loss_z);
      mine.scores.push_back(facts.grad_norm_z);
      if (facts.skipped) mine.skipped.push_back(number);
      const std::vector<at::Tensor> after = parameters_of(rank);
      bool same = true;
      for (size_t i = 0; i < before.size(); ++i) same = same && before[i].equal(after[i]);
      if (number == kPoisoned) mine.unchanged = same;
      if (number == kPoisoned + 1) CHECK(!same);
    }
    mine.updates = train::optimizer_of(rank.trainer).steps;
    out[static_cast<size_t>(world->rank())] = mine;
  });
  return out;
}

std::vector<Layout> layouts(const std::string& staged, const std::vector<std::string>& sets) {
  std::vector<Layout> out{
      {"ddp", 1},
      {"ddp", 2},
      {"fsdp2", 2},
      {"fsdp2", 2, {"distributed.fsdp2.reshard_after_forward=false"}},
      {"fsdp2", 2, {"distributed.tp_size=2"}},
      {"megatron_fsdp", 2},
      {"fsdp2", 2, {"distributed.pp_size=2", "distributed.pipeline.pp_microbatch_size=3"}}};
  for (Layout& layout : out) {
    layout.model = staged;
    layout.sets.insert(layout.sets.end(), sets.begin(), sets.end());
    // Many steps, of few micro-batches.
    for (const char* set : {"optimizer.eps=1e-5", "step_scheduler.local_batch_size=3"})
      layout.sets.emplace_back(set);
  }
  return out;
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

}  // namespace

TEST_CASE(
    "a step on poisoned data is left out on all ranks of every layout, and its parameters stay") {
  const TestFolder folder("left_out");
  const std::string model = write_model(folder.path, kLlama);
  std::vector<double> losses;
  for (const Layout& layout : layouts(model, {kOption})) {
    INFO(layout.text());
    for (const Course& course : courses(layout)) {
      CHECK(course.skipped == std::vector<int64_t>{kPoisoned});
      CHECK(course.unchanged);
      CHECK(course.updates == kSteps - 1);
      if (losses.empty()) losses = course.losses;
      for (size_t i = 0; i < losses.size(); ++i)
        CHECK(course.losses[i] == doctest::Approx(losses[i]).epsilon(1e-4));
    }
  }
}

// Gradients of a step that are not numbers would be there for good where one of them was not let
// go.
TEST_CASE("nothing of a step that is left out reaches the steps after it") {
  const TestFolder folder("left_out_nan");
  const std::string llama = write_model(folder.path, kLlama),
                    mixtral = write_model(folder.path, kMixtral);
  struct Row {
    const char* strategy;
    int64_t ranks;
    std::vector<std::string> sets;
  };
  for (const std::string& model : {llama, mixtral}) {
    std::vector<double> losses;
    for (Row row :
         {Row{"ddp", 1, {}},
          {"ddp", 2, {"step_scheduler.local_batch_size=3"}},
          {"fsdp2", 4, {"distributed.dp_replicate_size=2"}},
          {"fsdp2", 2, {"distributed.mp_policy.reduce_dtype=float64"}},
          {"fsdp2", 2, {"distributed.pp_size=2"}},
          {"megatron_fsdp", 2, {"distributed.megatron_fsdp.zero_dp_strategy=1", kNoCheck}},
          {"megatron_fsdp", 2, {"distributed.megatron_fsdp.zero_dp_strategy=2", kNoCheck}},
          {"fsdp2", 2, {"distributed.ep_size=2"}}}) {
      if (model == llama && row.sets.size() == 1 && row.sets[0] == "distributed.ep_size=2")
        continue;
      Layout layout{row.strategy, row.ranks, row.sets, model};
      INFO(layout.text());
      for (const char* set :
           {"run.skip_step_above_z=6", "run.stop_on_nonfinite=false", "optimizer.eps=1e-5"})
        layout.sets.emplace_back(set);
      run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
        Rank rank(layout, world);
        rank.initialize();
        std::vector<double> mine;
        for (int64_t step = 0; step < 5; ++step) {
          const std::vector<at::Tensor> before = parameters_of(rank);
          mine.push_back(rank.step(step == 2 ? std::nan("") : 1.0).loss);
          CHECK(train::monitor_of(rank.trainer).facts().skipped == (step == 2));
          const std::vector<at::Tensor> after = parameters_of(rank);
          for (size_t i = 0; step == 2 && i < before.size(); ++i) CHECK(before[i].equal(after[i]));
        }
        if (world->rank() > 0) return;
        if (losses.empty()) losses = mine;
        for (size_t step : {0, 1, 3, 4})
          CHECK(mine[step] == doctest::Approx(losses[step]).epsilon(1e-4));
        CHECK(std::isnan(mine[2]));
      });
    }
  }
}

TEST_CASE("without the option the poisoned step is trained on, and is told by its score") {
  const TestFolder folder("not_left_out");
  const std::string model = write_model(folder.path, kLlama);
  const Layout plain = layouts(model, {})[2];
  for (const Course& course : courses(plain)) {
    CHECK(course.skipped.empty());
    CHECK(!course.unchanged);
    CHECK(course.updates == kSteps);
    CHECK(course.scores[2 * kPoisoned + 1] > 8);  // of the norm
    for (size_t step = 0; step < 20; ++step) CHECK(std::isnan(course.scores[2 * step]));
  }
  // What it never has to leave out, it does not change.
  const Layout high = layouts(model, {"run.skip_step_above_z=1e9"})[2];
  CHECK(same_bits(courses(high)[0].losses, courses(plain)[0].losses));
}

TEST_CASE("a run that goes on judges its steps as an unbroken one") {
  const TestFolder folder("left_out_resumed");
  const std::string model = write_model(folder.path, kLlama), saved = folder.path / "saved";
  const Layout layout = layouts(model, {kOption})[2];
  const Course whole = courses(layout, "", saved)[0], rest = courses(layout, saved)[0];
  CHECK(rest.skipped == std::vector<int64_t>{kPoisoned});
  CHECK(rest.updates == whole.updates);
  REQUIRE(rest.losses.size() == kSteps - 21);
  CHECK(same_bits(rest.losses, {whole.losses.begin() + 21, whole.losses.end()}));
  CHECK(same_bits(rest.scores, {whole.scores.begin() + 2 * 21, whole.scores.end()}));
  // On another layout as well: what is usual is no rank's own.
  const Course elsewhere = courses(layouts(model, {kOption})[0], saved)[0];
  CHECK(elsewhere.skipped == std::vector<int64_t>{kPoisoned});
}

TEST_CASE("updates are counted without those left out, also after a checkpoint") {
  const TestFolder folder("left_out_counted");
  const std::string model = write_model(folder.path, kLlama), saved = folder.path / "saved";
  const Layout layout = layouts(model, {kOption})[0];
  run_ranks(1, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    rank.initialize();
    while (rank.trainer.next_step() < kSteps) step(rank);
    rank.trainer.save(saved);
  });
  run_ranks(1, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    rank.trainer.load(saved);
    CHECK(rank.trainer.next_step() == kSteps);
    CHECK(train::monitor_of(rank.trainer).updates(kSteps) == kSteps - 1);
    CHECK(train::optimizer_of(rank.trainer).steps == kSteps - 1);
  });
}

}  // namespace left_out_test
