// optimizer.main_dtype: main weights and moments of another dtype beside what a strategy stores,
// for every strategy. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/curves.h"
#include "engine/train/run/tests/megatron_fsdp.h"
#include "engine/train/run/tests/saved.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "engine/checkpoint/export.h"
#include "engine/checkpoint/source.h"
#include "engine/checkpoint/weights/safetensors.h"
#include "engine/job/plan.h"
#include "engine/train/step/load_weights.h"
#include "engine/train/step/optimizer.h"
#include "engine/train/step/tests/causal_loss.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

namespace main_weights_test {

using namespace meshwright;
namespace fs = std::filesystem;
using at::Tensor;

namespace {

const std::string kMain = "optimizer.main_dtype=\"float32\"",
                  kStored = "model.torch_dtype=\"bfloat16\"";

// Weights in bfloat16; gradients are computed in float32, or the layouts would differ by the
// rounding of these.
Layout stored_layout(const std::string& model, const char* strategy, int64_t ranks,
                     std::vector<std::string> more = {}, bool main = true) {
  more.insert(more.end(), {kStored, "optimizer.eps=1e-5"});
  if (main) more.push_back(kMain);
  Layout out{.strategy = strategy,
             .ranks = ranks,
             .sets = std::move(more),
             .model = model,
             .storage = DType::bfloat16};
  return out;
}

std::vector<Layout> layouts(const std::string& model) {
  std::vector<Layout> out = {
      stored_layout(model, "fsdp2", 4, {"distributed.dp_replicate_size=2"}),
      stored_layout(model, "ddp", 1),
      stored_layout(model, "ddp", 3),
      stored_layout(model, "ddp", 2, {"distributed.ddp.gradient_as_bucket_view=false"}),
      stored_layout(model, "fsdp2", 1),
      stored_layout(model, "fsdp2", 3),
      stored_layout(model, "fsdp2", 2, {"distributed.fsdp2.offload_policy=\"cpu\""}),
      stored_layout(model, "fsdp2", 4, {kTp2})};
  for (int n = 0; n <= 3; ++n)
    out.push_back(stored_layout(model, "megatron_fsdp", n == 0 ? 1 : 2, {flat_level(n)}));
  return out;
}

bool said(const std::vector<std::string>& texts, const std::string& words) {
  return std::any_of(texts.begin(), texts.end(), [&](const std::string& text) {
    return text.find(words) != std::string::npos;
  });
}

// A step of AdamW on float32 weights of its own, written down here.
struct ByHand {
  Tensor main, m, v;
  void step(const Tensor& gradient, double lr, int64_t t) {
    const double beta1 = 0.9, beta2 = 0.95, eps = 1e-5, decay = 0.1;
    Tensor g = gradient.to(at::kFloat);
    main.mul_(1 - lr * decay);
    m.mul_(beta1).add_(g, 1 - beta1);
    v.mul_(beta2).addcmul_(g, g, 1 - beta2);
    main.sub_(m / (1 - std::pow(beta1, t)) / ((v / (1 - std::pow(beta2, t))).sqrt() + eps), lr);
  }
};

}  // namespace

TEST_CASE(
    "with main_dtype a bfloat16 model follows float32 AdamW written by hand, rounded after each "
    "step; without it it does not") {
  TestFolder folder("main_weights");
  std::string model = write_model(folder.path, kLlama);
  for (bool main : {true, false})
    for (const auto& [strategy, ranks] :
         {std::pair("fsdp2", 2), {"ddp", 1}, {"megatron_fsdp", 2}}) {
      Layout layout = stored_layout(model, strategy, ranks, {}, main);
      INFO(layout.text());
      int64_t other_bits = 0, all = 0;
      std::mutex mutex;
      run_ranks(ranks, [&](const std::shared_ptr<World>& world) {
        Rank rank(layout, world);
        rank.initialize();
        ParallelModel& trained = rank.trainer.model();
        std::map<std::string, ByHand> hand;
        for (const ParallelParameter& p : trained.parameters()) {
          Tensor wide = p.local.to(at::kFloat);
          hand[p.name] = {wide, at::zeros_like(wide), at::zeros_like(wide)};
        }
        int64_t mine = 0, elements = 0;
        for (int64_t step = 1; step <= 20; ++step) {
          std::map<std::string, Tensor> gradients;
          rank.trainer.before_update([&] {
            for (const ParallelParameter& p : trained.parameters())
              gradients[p.name] = p.grad.clone();
          });
          StepResult result = rank.step();
          for (const ParallelParameter& p : trained.parameters()) {
            ByHand& one = hand.at(p.name);
            one.step(gradients.at(p.name), result.lr, step);
            mine += (one.main.to(at::kBFloat16) != p.local).sum().item<int64_t>();
            elements += p.local.numel();
          }
        }
        std::lock_guard lock(mutex);
        other_bits += mine;
        all += elements;
      });
      MESSAGE(std::string(strategy), std::string(main ? " with" : " without"),
              std::string(" main weights: "), other_bits, std::string(" of "), all,
              std::string(" have other bits"));
      // The order of operations in the kernel differs in the last float32 digit, which tips a
      // rounding to bfloat16 now and then.
      if (main) CHECK(other_bits < all / 1000);
      if (!main) CHECK(other_bits > all / 20);
    }
}

TEST_CASE("main weights train alike on every strategy, level and mesh") {
  TestFolder folder("main_weights");
  std::string model = write_model(folder.path, kLlama);
  const int steps = steps_of(5, 8);
  Curve truth = curve_of(stored_layout(model, "ddp", 1), steps);
  Curve single = curve_of(
      Layout{.strategy = "ddp", .ranks = 1, .sets = {"optimizer.eps=1e-5"}, .model = model}, steps);
  std::vector<Layout> all = layouts(model);
  // The strategy's own main weights, which main_dtype does not double.
  all.push_back(
      stored_layout(model, "megatron_fsdp", 2, {flat_option("preserve_fp32_weights", "true")}));
  for (const Layout& layout : all) {
    INFO(layout.text());
    Curve found = curve_of(layout, steps);
    // Gradients are kept in bfloat16 by all of them, so sums in another order tip roundings now and
    // then; 2^-9 is half a digit.
    CHECK(farthest(found.losses, truth.losses) < 2e-3);
    CHECK(farthest(found.norms, truth.norms) < 1e-2);
    CHECK(farthest(found.losses, single.losses) < 5e-3);
  }
}

TEST_CASE(
    "checkpoints hold main weights, which any layout loads bitwise identical from any other's") {
  TestFolder folder("main_weights_checkpoint");
  std::string model = write_model(folder.path, kLlama);
  std::vector<Layout> all = layouts(model);
  all.push_back(stored_layout(model, "megatron_fsdp", 3,
                              {flat_option("preserve_fp32_weights", "true")}, /*main=*/false));
  for (size_t a = 0; a < all.size(); ++a) {
    fs::path saved = folder.path / ("from " + std::to_string(a));
    std::vector<double> unbroken = losses_of(all[a], {}, 5, saved, 3);
    std::map<std::string, std::string> kept = contents(saved / "step_00000003");
    checkpoint::Checkpoint written(saved / "step_00000003");
    for (const checkpoint::TensorRecord& tensor : written.meta().tensors)
      CHECK(tensor.dtype == DType::float32);
    for (size_t b = 0; b < all.size(); ++b) {
      if (a != 0 && b != 0 && a != b) continue;
      if (a != b && !sampled(a + b, 2)) continue;  // half: from and to the first one in turns
      INFO("from ", all[a].text(), " to ", all[b].text());
      fs::path again = saved / ("to " + std::to_string(b));
      std::vector<double> losses = losses_of(all[b], saved, 2, again, 0);
      CHECK(contents(again / "step_00000003") == kept);
      REQUIRE(losses.size() == 2);
      if (a == b)
        for (size_t i = 0; i < 2; ++i) CHECK(losses[i] == unbroken[i + 3]);
      else
        CHECK(std::abs(losses[0] - unbroken[3]) < 1e-4);  // the same weights; other sums
    }
  }
}

TEST_CASE(
    "a run that goes on without main weights is refused with what keeps them, and one that begins "
    "to keep some is told") {
  TestFolder folder("main_weights_told");
  std::string model = write_model(folder.path, kLlama);
  struct Said {
    std::string error;
    std::vector<std::string> helps, notices;
  };
  auto after = [&](const Layout& layout, const fs::path& from) {
    Said out;
    run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
      Rank rank(layout, world);
      Said mine;
      try {
        rank.trainer.load(from.string());
        rank.step();
      } catch (const Error& error) {
        mine.error = error.message();
        mine.helps = error.helps();
      }
      mine.notices = world->notices();
      if (world->rank() == 0) out = mine;
    });
    return out;
  };
  Layout with = stored_layout(model, "fsdp2", 2),
         without = stored_layout(model, "fsdp2", 2, {}, /*main=*/false);
  losses_of(with, {}, 2, folder.path / "with", 2);
  losses_of(without, {}, 2, folder.path / "without", 2);
  Said off = after(without, folder.path / "with"), on = after(with, folder.path / "without");
  CHECK(off.error.find(
            "it holds weights in float32, this job in bfloat16, which would round them for good") !=
        std::string::npos);
  CHECK(said(off.helps, "set optimizer.main_dtype = \"float32\""));
  CHECK(on.error.empty());
  CHECK(said(on.notices, "the checkpoint holds weights in bfloat16, this job in float32"));
  for (const auto& [layout, from] : {std::pair(with, "with"), {without, "without"}}) {
    Said same = after(layout, folder.path / from);
    CHECK(same.error.empty());
    CHECK(!said(same.notices, "the checkpoint holds"));
  }
}

TEST_CASE("what had main weights may be frozen: it goes on as the model computed with it") {
  TestFolder folder("main_weights_frozen");
  const std::string model = write_model(folder.path, kLlama), name = "model.embed_tokens.weight",
                    freeze = R"(optimizer.group=[{pattern = "*embed*", frozen = true}])";
  const Layout with = stored_layout(model, "fsdp2", 2);
  Tensor before;
  run_ranks(2, [&](const std::shared_ptr<World>& world) {
    Rank rank(with, world);
    rank.initialize();
    for (int step = 0; step < 2; ++step) rank.step();
    rank.trainer.save(folder.path.string());
    const Tensor whole = rank.trainer.model().full_tensor(name).clone();
    if (world->rank() == 0) before = whole;
  });
  for (const char* strategy : {"fsdp2", "ddp", "megatron_fsdp"}) {
    CAPTURE(strategy);
    run_ranks(2, [&](const std::shared_ptr<World>& world) {
      Rank rank(stored_layout(model, strategy, 2, {freeze}), world);
      rank.trainer.load(folder.path.string());
      rank.step();
      const Tensor now = rank.trainer.model().full_tensor(name).clone();
      if (world->rank() != 0) return;
      CHECK((now.scalar_type() == at::kBFloat16));
      CHECK(now.equal(before));
      CHECK(said(world->notices(), "parameters that are frozen in this job go on in bfloat16"));
    });
  }
  // What trains is still not rounded, and neither is what the model itself holds in float32.
  const auto refused = [&](const Layout& layout, const fs::path& from) {
    std::string out;
    run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
      Rank rank(layout, world);
      try {
        rank.trainer.load(from.string());
      } catch (const Error& error) {
        if (world->rank() == 0) out = error.message();
      }
    });
    return out.find("which would round them for good") != std::string::npos;
  };
  CHECK(refused(stored_layout(model, "fsdp2", 2, {freeze}, /*main=*/false), folder.path));
  losses_of({.strategy = "fsdp2", .ranks = 2, .model = model}, {}, 1, folder.path / "wide", 1);
  CHECK(refused(stored_layout(model, "fsdp2", 2, {freeze}), folder.path / "wide"));
}

TEST_CASE(
    "fresh main weights have all the digits of the values that the model is filled with, and an "
    "export has the stored dtype") {
  TestFolder folder("main_weights_fresh");
  std::string model = write_model(folder.path, kLlama);
  std::map<std::string, std::string> float32;
  for (bool half : {false, true}) {
    Layout layout = half ? stored_layout(model, "fsdp2", 2)
                         : Layout{.strategy = "fsdp2", .ranks = 2, .sets = {}, .model = model};
    fs::path saved = folder.path / (half ? "half" : "single");
    run_ranks(2, [&](const std::shared_ptr<World>& world) {
      Rank rank(layout, world);
      train::load_weights_of(rank.trainer, "", rank.net, 1);
      rank.trainer.save(saved.string());
    });
    std::map<std::string, std::string> kept = contents(saved / "step_00000000");
    if (float32.empty()) float32 = kept;
    CHECK(kept == float32);
  }
  checkpoint::Source source(folder.path / "half" / "step_00000000");
  checkpoint::export_folder(source, folder.path / "hf", {});
  weights::WeightFolder exported((folder.path / "hf").string());
  REQUIRE(!exported.names().empty());
  for (const std::string& name : exported.names())
    CHECK(exported.find(name)->dtype == DType::bfloat16);
}

TEST_CASE(
    "plans count main weights, say where main_dtype does nothing, and warn of updates in 16 bits "
    "with what helps") {
  TestFolder folder("main_weights_plan");
  std::string model = write_model(folder.path, kLlama);
  auto plan_of = [&](const Layout& layout) {
    Job job = Rank::make(layout);
    return plan::make_plan(job.impl(), {.world_size = layout.ranks});
  };
  auto held_by = [&](const Layout& layout) {
    int64_t bytes = 0;
    run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
      Rank rank(layout, world);
      rank.initialize();
      rank.step();
      train::Optimizer& optimizer = train::optimizer_of(rank.trainer);
      const std::vector<FlatParameterGroup>& groups = rank.trainer.model().update_groups();
      int64_t mine = 0;
      for (const train::Optimizer::State& state : optimizer.state())
        for (const Tensor& t : state.tensors) mine += static_cast<int64_t>(t.nbytes());
      for (size_t i = 0; i < groups.size(); ++i) {
        Tensor weights = optimizer.weights(groups, i);
        // What the strategy stores itself in float32 beside a bfloat16 model are its own main
        // weights.
        if (weights.scalar_type() != at::kBFloat16) mine += static_cast<int64_t>(weights.nbytes());
      }
      if (world->rank() == 0) bytes = mine;
    });
    return bytes;
  };
  const std::string sgd = "optimizer.name=\"sgd\"", momentum = "optimizer.momentum=0.9";
  for (const Layout& layout :
       {stored_layout(model, "fsdp2", 2), stored_layout(model, "ddp", 2),
        stored_layout(model, "megatron_fsdp", 2, {flat_level(3)}),
        stored_layout(model, "megatron_fsdp", 2, {flat_level(1)}),
        stored_layout(model, "fsdp2", 2, {sgd}), stored_layout(model, "fsdp2", 2, {sgd, momentum}),
        stored_layout(model, "megatron_fsdp", 2, {flat_option("preserve_fp32_weights", "true")})}) {
    INFO(layout.text());
    plan::JobPlan plan = plan_of(layout);
    CHECK(plan.footprint->bytes.optimizer == held_by(layout));
    CHECK(!said(plan.warnings, "main_dtype"));
  }
  for (const char* strategy : {"fsdp2", "ddp", "megatron_fsdp"}) {
    plan::JobPlan plan = plan_of(stored_layout(model, strategy, 2, {}, /*main=*/false));
    CHECK(said(plan.warnings, "adamw updates bfloat16 weights and keeps its state in bfloat16"));
    CHECK(said(plan.warnings, "optimizer.main_dtype = \"float32\""));
    CHECK(said(plan.warnings, "model.torch_dtype = \"float32\""));
  }
  CHECK(!said(plan_of(stored_layout(model, "megatron_fsdp", 2,
                                    {flat_option("preserve_fp32_weights", "true")}, /*main=*/false))
                  .warnings,
              "main_dtype"));
  CHECK(said(plan_of(stored_layout(model, "megatron_fsdp", 2,
                                   {flat_option("preserve_fp32_weights", "true")}))
                 .notices,
             "keeps float32 main weights of its own"));
  Layout same{.strategy = "fsdp2", .ranks = 2, .sets = {kMain}, .model = model};
  CHECK(said(plan_of(same).notices, "optimizer.main_dtype = \"float32\" has no effect"));
  same.sets.push_back("model.torch_dtype=\"float64\"");
  try {
    plan_of(same);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::conflict);
    CHECK(error.key() == "optimizer.main_dtype");
  }
}

TEST_CASE(
    "a step with main weights allocates no memory that grows with the model, after the first one") {
  struct Largest : c10::MemoryReportingInfoBase {
    int64_t bytes = 0;
    void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
      bytes = std::max(bytes, size);
    }
    bool memoryProfilingEnabled() const override { return true; }
  };
  Job job;
  job.set("optimizer.main_dtype", "\"float32\"");
  std::unique_ptr<train::Optimizer> optimizer = train::make_optimizer(job.table("optimizer"));
  const int64_t count = 3 << 20;
  std::vector<FlatParameterGroup> groups{
      {at::zeros({count}, at::kBFloat16), at::ones({count}, at::kBFloat16)}};
  optimizer->step(groups, 1e-3);
  auto largest = std::make_shared<Largest>();
  {
    c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, largest);
    optimizer->step(groups, 1e-3);
  }
  CHECK(largest->bytes < 4096);
}

}  // namespace main_weights_test
