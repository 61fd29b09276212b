// Gradients in float16 beside those of float32: without a scale most of them are zero where a step
// has many targets. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/curves.h"
#include "engine/train/run/tests/pipeline_layouts.h"
#include "engine/train/step/optimizer.h"
#include "engine/train/step/step_monitor.h"

#include <doctest/doctest.h>

namespace loss_scale_test {

using namespace meshwright;
using at::Tensor;

namespace {

// A step has 8 targets in each micro-batch, and the trainer is told of as many as this: the same
// small gradients in backward as that many would have.
constexpr int64_t kTargets = 8192;

const std::string kFloat16 = "distributed.mp_policy.param_dtype=float16",
                  kNoClip = "optimizer.max_grad_norm=none",
                  kDynamic = "optimizer.dynamic_loss_scale=true";

// After a step: gradients by name, whole.
std::map<std::string, Tensor> gradients_of(const Layout& layout) {
  std::map<std::string, Tensor> out;
  std::mutex mutex;
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world, {}, kTargets);
    rank.initialize();
    rank.step();
    std::lock_guard lock(mutex);
    for (const ParallelParameter& p : rank.trainer.model().parameters()) {
      Tensor& whole = out[p.name];
      if (!whole.defined()) whole = at::zeros(p.global_shape, at::kFloat);
      if (!p.grad.defined() || p.grad.numel() == 0) continue;
      Tensor part = whole;
      for (size_t d = 0; d < p.region.sizes.size(); ++d)
        part = part.narrow(static_cast<int64_t>(d), p.region.offsets[d], p.region.sizes[d]);
      part.copy_(p.grad);
    }
  });
  return out;
}

}  // namespace

TEST_CASE("gradients in float16 are those of float32, however many targets a step has") {
  TestFolder folder("loss_scale");
  const std::string model = write_model(folder.path, kStaged);
  auto layout_of = [&](const char* strategy, int64_t ranks, std::vector<std::string> sets) {
    sets.push_back(kNoClip);
    return Layout{strategy, ranks, std::move(sets), model};
  };
  const std::map<std::string, Tensor> truth = gradients_of(layout_of("ddp", 1, {}));
  struct Row {
    Layout layout;
    DType storage = DType::float32;
  };
  const std::string kMain = "optimizer.main_dtype=float32";
  for (Row row :
       {Row{layout_of("ddp", 1, {kFloat16})},
        Row{layout_of("ddp", 1, {"distributed.autocast_dtype=float16"})},
        Row{layout_of("fsdp2", 2, {kFloat16, kPp2})}, Row{layout_of("fsdp2", 2, {kFloat16, kTp2})},
        Row{layout_of("fsdp2", 2, {kFloat16, kMain}), DType::float16},
        Row{layout_of("ddp", 2, {kFloat16, kMain}), DType::float16}}) {
    row.layout.storage = row.storage;
    INFO(row.layout.text());
    const std::map<std::string, Tensor> found = gradients_of(row.layout);
    REQUIRE(found.size() == truth.size());
    for (const auto& [name, exact] : truth) {
      INFO(name);
      const double far =
          (found.at(name) - exact).norm().item<double>() / exact.norm().item<double>();
      CHECK(far < 0.02);  // k_proj is off by 60% without a scale
    }
  }
}

TEST_CASE("a loss scale that is too large ends the run, or halves until it fits") {
  constexpr double kSpoil = 3e4;  // gradients above what float16 holds
  for (bool adapts : {false, true}) {
    CAPTURE(adapts);
    Layout layout{"fsdp2", 2, {kFloat16, "optimizer.loss_scale=65536"}};
    if (adapts) layout.sets.push_back(kDynamic);
    run_ranks(2, [&](const std::shared_ptr<World>& world) {
      Rank rank(layout, world);
      rank.initialize();
      const Tensor before = rank.trainer.model().update_groups()[0].values.clone();
      train::StepMonitor& monitor = train::monitor_of(rank.trainer);
      if (!adapts) {
        try {
          rank.step(kSpoil);
          FAIL("no error");
        } catch (const Error& error) {
          CHECK(error.code() == ErrorCode::nonfinite);
          REQUIRE(!error.helps().empty());
          CHECK(error.helps()[0] == "set optimizer.dynamic_loss_scale = true");
        }
        return;
      }
      double scale = monitor.loss_scale();
      CHECK(scale == 65536);
      int left_out = 0;
      for (;; ++left_out) {
        const StepResult result = rank.step(kSpoil);
        if (!monitor.facts().skipped) {
          CHECK(std::isfinite(result.grad_norm));
          break;
        }
        REQUIRE(left_out < 20);
        CHECK(rank.trainer.model().update_groups()[0].values.equal(before));
        scale /= 2;
        CHECK(monitor.loss_scale() == scale);
      }
      CHECK(left_out > 0);
      CHECK(train::optimizer_of(rank.trainer).steps == 1);
      CHECK_FALSE(rank.trainer.model().update_groups()[0].values.equal(before));
    });
  }
}

}  // namespace loss_scale_test
