// megatron_fsdp takes the steps of one process at every level with main weights of their own dtype;
// in one dtype, beside every axis: layouts_test.cpp. Before doctest: LibTorch has a CHECK of its
// own.
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

}  // namespace

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
