// megatron_fsdp takes the steps of one process at every level, and all levels take the same ones.
// Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/megatron_fsdp.h"
#include "sdk/comm/tests/sampled.h"

#include <doctest/doctest.h>

namespace megatron_fsdp_test {

using namespace meshwright;

namespace {

const int kSteps = steps_of(5, 10);

void check_parameters(const Curve& curve, const Curve& truth, double tolerance) {
  REQUIRE(curve.parameters.size() == truth.parameters.size());
  for (const auto& [name, tensor] : curve.parameters) {
    INFO(name);
    CHECK(farthest(tensor, truth.parameters.at(name)) < tolerance);
  }
}

void check_close(const Curve& curve, const Curve& truth, double tolerance, double parameters) {
  CHECK(farthest(curve.losses, truth.losses) < tolerance);
  CHECK(farthest(curve.norms, truth.norms) < tolerance);
  check_parameters(curve, truth, parameters);
}

}  // namespace

TEST_CASE("steps at every level, with one and four micro-batches, on two to four ranks") {
  TestFolder folder("megatron_fsdp");
  std::string model = write_model(folder.path, kLlama);
  Layout alone = flat_layout(model, 1, 1, 1, {});
  alone.strategy = "ddp";
  Curve truth = curve_of(alone, kSteps, kSteps);
  // Every pair of ranks and level once, with the one or the other number of micro-batches.
  for (int64_t ranks : {1, 2, 3, 4})
    for (int64_t accumulation : {1, 4})
      for (int n = 0; n <= 3; ++n) {
        if (!sampled(static_cast<size_t>(ranks + accumulation / 4 + n), 2)) continue;
        Layout layout = flat_layout(model, ranks, 1, accumulation, {flat_level(n)});
        INFO(layout.text());
        check_close(curve_of(layout, kSteps, kSteps), truth, 1e-6, 5e-6);
      }
}

TEST_CASE("steps at every level under tensor parallelism") {
  TestFolder folder("megatron_fsdp");
  const SmallModel odd{"odd",   "Qwen3ForCausalLM",
                       "qwen3", 48,
                       6,       2,
                       257,     R"(, "tie_word_embeddings": true, "intermediate_size": 41)"};
  // Half: of model, mesh, number of micro-batches and level every pair.
  size_t number = 0;
  for (const SmallModel& m : {kLlama, kQwen3, kPhi3, odd}) {
    const size_t of_model = number++;
    std::string model = write_model(folder.path, m);
    Layout alone = flat_layout(model, 1, 1, 1, {});
    alone.strategy = "ddp";
    Curve truth = curve_of(alone, kSteps, kSteps);
    for (auto [ranks, tp] : std::vector<std::pair<int64_t, int64_t>>{{2, 2}, {4, 2}, {6, 2}})
      for (int64_t accumulation : {1, 4})
        for (int n = 0; n <= 3; ++n) {
          if (m.name != kLlama.name && (accumulation == 1 || ranks == 6)) continue;
          if (!sampled(of_model + static_cast<size_t>(ranks / 2 + accumulation / 4 + n), 2))
            continue;
          Layout layout = flat_layout(model, ranks, tp, accumulation, {flat_level(n)});
          INFO(m.name << ": " << layout.text());
          check_close(curve_of(layout, kSteps, kSteps), truth, 1e-6, 5e-6);
        }
  }
}

// The weights are rounded to bfloat16 alike everywhere; gradients, whose sums have another order,
// are rounded after that.
TEST_CASE("steps in bfloat16 with float32 main weights, with and without float32 main gradients") {
  TestFolder folder("megatron_fsdp");
  std::string model = write_model(folder.path, kLlama);
  std::vector<std::string> half{flat_option("preserve_fp32_weights", "true"),
                                "distributed.mp_policy.param_dtype=\"bfloat16\"",
                                "distributed.mp_policy.output_dtype=\"float32\"",
                                "model.torch_dtype=\"bfloat16\""};
  // A quarter: every mesh at every level once, and with both dtypes of gradients and both numbers
  // of micro-batches, as every level.
  size_t of_wide = 0;
  for (const char* wide : {"true", "false"}) {
    std::vector<std::string> sets = half;
    sets.push_back(flat_option("grad_reduce_in_fp32", wide));
    auto layout_at = [&](int64_t ranks, int64_t tp, int64_t accumulation, int n) {
      std::vector<std::string> all = sets;
      all.push_back(flat_level(n));
      Layout layout = flat_layout(model, ranks, tp, accumulation, all);
      layout.storage = DType::bfloat16;
      return layout;
    };
    for (int64_t accumulation : {1, 4}) {
      size_t turn = of_wide++;
      Curve truth = curve_of(layout_at(1, 1, accumulation, 0), kSteps, kSteps);
      for (auto [ranks, tp] :
           std::vector<std::pair<int64_t, int64_t>>{{2, 1}, {3, 1}, {4, 1}, {2, 2}, {4, 2}}) {
        const size_t of_mesh = turn++;
        for (int n = 0; n <= 3; ++n) {
          if (!sampled(of_mesh + static_cast<size_t>(n), 4)) continue;
          Layout layout = layout_at(ranks, tp, accumulation, n);
          INFO(layout.text());
          Curve curve = curve_of(layout, kSteps, kSteps);
          CHECK((curve.parameters.begin()->second.scalar_type() == at::kFloat));
          // Real distances: losses 3.4e-4, norms 2e-3.
          CHECK(farthest(curve.losses, truth.losses) < 1e-3);
          CHECK(farthest(curve.norms, truth.norms) < 5e-3);
          check_parameters(curve, truth, 4e-3);
        }
      }
    }
  }
}

}  // namespace megatron_fsdp_test
