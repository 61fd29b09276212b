// Tensor and sequence parallel training takes the steps of one process on every mesh; every model,
// beside every other axis: layouts_test.cpp. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/curves.h"
#include "sdk/comm/tests/sampled.h"

#include <ATen/ops/full.h>
#include <doctest/doctest.h>

#include <limits>

namespace tensor_parallel_test {

using namespace meshwright;

namespace {

const std::vector<std::vector<std::string>> kVariants = {
    {}, {kSequence}, {kSequence, kAsync}, {kBase}, {kSequence, kBase}};

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
    "steps of Llama on every mesh, with and without sequence parallelism, with logits cut "
    "or gathered") {
  TestFolder folder("tensor_parallel");
  std::string model = write_model(folder.path, kLlama);
  const int steps = steps_of(6, 20);
  Curve truth = curve_of(calm_layout(model, kAlone), steps);
  size_t turn = 0;  // half: each mesh with two or three of these
  for (const OnMesh& mesh : kTpMeshes)
    for (const std::vector<std::string>& more : kVariants) {
      if (!sampled(turn++, 2)) continue;
      Layout layout = calm_layout(model, mesh, more);
      INFO(layout.text());
      CHECK(strays(curve_of(layout, steps), truth) == "");
    }
}

TEST_CASE(
    "gradients are those of one process, and cut and whole ones count once in the norm that clips "
    "them") {
  TestFolder folder("tensor_parallel");
  constexpr double kLimit = 0.25;
  const std::vector<std::string> clip{"optimizer.max_grad_norm=0.25"};
  size_t number = 0;  // half: of model, mesh and cut sequences every pair
  for (const SmallModel& m : {kBiases, kPhi3}) {
    size_t of_mesh = number++;
    std::string model = write_model(folder.path, m);
    Gradients truth = gradients_of(calm_layout(model, kAlone, clip));
    for (const OnMesh& mesh : kTpMeshes) {
      size_t turn = of_mesh++;
      for (bool sequence : {false, true}) {
        if (!sampled(turn++, 2)) continue;
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

TEST_CASE("more ranks than key-value heads are refused with the sizes that fit") {
  TestFolder folder("tensor_parallel");
  std::string model = write_model(folder.path, {"odd", "LlamaForCausalLM", "llama", 96, 6, 2, 257});
  std::mutex mutex;
  int refused = 0;
  run_ranks(4, [&](const std::shared_ptr<World>& world) {
    try {
      Rank rank(calm_layout(model, {4, {kTp4}}), world);
    } catch (const Error& error) {
      std::lock_guard lock(mutex);
      refused += error.code() == ErrorCode::heads_not_divisible &&
                 std::string(error.what()).find("2 key-value heads, which do not divide by tp 4") !=
                     std::string::npos &&
                 error.helps().at(0) == "set distributed.tp_size = 2";
    }
  });
  CHECK(refused == 4);
}

TEST_CASE("in bfloat16, tensor parallelism is as near to float32 as one process is") {
  TestFolder folder("tensor_parallel");
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

}  // namespace tensor_parallel_test
