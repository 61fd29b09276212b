// Tensor parallelism beside the other options of training: none of them changes what the optimizer
// gets. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/curves.h"
#include "sdk/comm/tests/sampled.h"

#include <ATen/ops/full.h>
#include <doctest/doctest.h>

#include <limits>

namespace tensor_parallel_options_test {

using namespace meshwright;

namespace {

// The gradients that the optimizer gets in one step, whole: parts of all ranks put together.
struct Gradients {
  double norm = 0;
  std::map<std::string, at::Tensor> whole;
  bool agree = true;  // ranks with the same part have the same numbers
};

Gradients gradients_of(const Layout& layout) {
  Gradients out;
  std::mutex mutex;
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    rank.initialize();
    rank.trainer.before_update([&] {
      std::lock_guard lock(mutex);
      for (const ParallelParameter& p : rank.trainer.model().parameters()) {
        auto [it, added] = out.whole.try_emplace(p.name);
        if (added)
          it->second =
              at::full(p.global_shape, std::numeric_limits<double>::quiet_NaN(), at::kFloat);
        at::Tensor slot = it->second;
        for (int64_t d = 0; d < slot.dim(); ++d)
          slot = slot.narrow(d, p.region.offsets[static_cast<size_t>(d)], p.grad.size(d));
        if (slot.numel() == 0) continue;
        at::Tensor there = slot.isfinite();
        if (there.any().item<bool>()) out.agree = out.agree && slot.equal(p.grad);
        slot.copy_(p.grad);
      }
    });
    StepResult result = rank.step();
    std::lock_guard lock(mutex);
    out.norm = result.grad_norm;
  });
  return out;
}

}  // namespace

TEST_CASE(
    "gradients are those of one process, and cut and whole ones count once in the norm that clips "
    "them") {
  TestFolder folder("tensor_parallel_options");
  constexpr double kLimit = 0.25;
  const std::vector<std::string> clip{"optimizer.max_grad_norm=0.25"};
  size_t number = 0;  // half: of model, mesh and cut sequences every pair
  for (const SmallModel& m : {kBiases, kQwen3, kPhi3, kWideQwen3, kWideGemma3}) {
    const bool wide = std::string(m.more).find("head_dim") != std::string::npos;  // on two ranks
    size_t of_mesh = number++;
    std::string model = write_model(folder.path, m);
    Gradients truth = gradients_of(calm_layout(model, kAlone, clip));
    for (const OnMesh& mesh : kTpMeshes) {
      size_t turn = of_mesh++;
      if (wide && &mesh != &kTpMeshes[0]) continue;
      for (bool sequence : {false, true}) {
        if (!wide && !sampled(turn++, 2)) continue;
        Layout layout = calm_layout(model, mesh, clip);
        if (sequence) layout.sets.push_back(kSequence);
        INFO(m.name << ": " << layout.text());
        Gradients got = gradients_of(layout);
        CHECK(got.agree);
        CHECK(std::abs(got.norm / truth.norm - 1) < 1e-6);
        CHECK(got.norm > 2 * kLimit);
        REQUIRE(got.whole.size() == truth.whole.size());
        double squares = 0;
        for (const auto& [name, gradient] : got.whole) {
          INFO(name);
          squares += gradient.to(at::kDouble).square().sum().item<double>();
          const at::Tensor& whole = truth.whole.at(name);
          CHECK(farthest(gradient, whole) < 1e-5 * whole.abs().max().item<double>());
        }
        CHECK(std::abs(std::sqrt(squares) / (kLimit * got.norm / (got.norm + 1e-6)) - 1) < 1e-6);
      }
    }
  }
}

TEST_CASE(
    "recomputing, accumulating, offloading and prefetching change nothing under tensor "
    "parallelism") {
  TestFolder folder("tensor_parallel_options");
  struct Row {
    const char* set;
    bool same_bits;  // as the run without it
  };
  const SmallModel models[] = {kBiases, kGemma3};
  size_t number = 0;  // half: with cut sequences each row once, without every second row
  for (const SmallModel& m : models) {
    std::string model = write_model(folder.path, m);
    Curve truth = curve_of(calm_layout(model, kAlone), 5);
    for (bool sequence : {true, false}) {
      if (!sequence && &m != &models[0]) continue;
      OnMesh mesh{4, {kTp2, "step_scheduler.local_batch_size=3"}};  // x shard 2, two micro-batches
      if (sequence) mesh.sets.push_back(kSequence);
      Curve plain = curve_of(calm_layout(model, mesh), 5);
      size_t turn = ++number / 2;
      for (const Row& row : {Row{"distributed.activation_checkpointing=full", true},
                             {"distributed.activation_checkpointing=selective", true},
                             {"distributed.enable_async_tensor_parallel=true", false},
                             {"step_scheduler.local_batch_size=2", false},
                             {"step_scheduler.local_batch_size=6", false},
                             {"distributed.fsdp2.defer_fsdp_grad_sync=false", false},
                             {"distributed.fsdp2.offload_policy=cpu", true},
                             {"distributed.fsdp2.enable_fsdp2_prefetch=true", true},
                             {"distributed.fsdp2.reshard_after_forward=false", true},
                             {"distributed.fsdp2.reshard_after_forward=true", true}}) {
        if (!sampled(turn++, 2) || (row.set == kAsync && !sequence)) continue;
        Layout layout = calm_layout(model, mesh, {row.set});
        INFO(m.name << ": " << layout.text());
        Curve curve = curve_of(layout, 5);
        CHECK(farthest(curve.losses, truth.losses) < 1e-6);
        CHECK(farthest(curve.norms, truth.norms) < 1e-6);
        for (const auto& [name, tensor] : curve.parameters) {
          INFO(name);
          CHECK(farthest(tensor, truth.parameters.at(name)) < 5e-6);
          if (row.same_bits) CHECK(tensor.equal(plain.parameters.at(name)));
        }
        if (row.same_bits) CHECK(curve.losses == plain.losses);
      }
    }
  }
}

TEST_CASE("in bfloat16, tensor parallelism is as near to float32 as one process is") {
  TestFolder folder("tensor_parallel_options");
  const std::vector<std::string> narrow{"distributed.mp_policy.param_dtype=bfloat16",
                                        "distributed.mp_policy.output_dtype=bfloat16"};
  std::string model = write_model(folder.path, kQwen3);
  Curve exact = curve_of(calm_layout(model, kAlone), 8),
        one = curve_of(calm_layout(model, kAlone, narrow), 8);
  double loss = farthest(one.losses, exact.losses), norm = farthest(one.norms, exact.norms);
  CHECK(loss > 1e-6);  // there is rounding to speak of
  for (const OnMesh& mesh : {kTpMeshes[0], kTpMeshes[1], kTpMeshes[2]})
    for (bool sequence : {false, true}) {
      Layout layout = calm_layout(model, mesh, narrow);
      if (sequence) layout.sets.push_back(kSequence);
      INFO(layout.text());
      Curve curve = curve_of(layout, 8);
      CHECK(farthest(curve.losses, exact.losses) < 3 * loss);
      CHECK(farthest(curve.norms, exact.norms) < 3 * norm);
    }
}

}  // namespace tensor_parallel_options_test
