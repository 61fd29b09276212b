// Tensor and sequence parallel training takes the steps of one process on every mesh; every model,
// beside every other axis: layouts_test.cpp. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/curves.h"
#include "sdk/comm/tests/sampled.h"

#include <doctest/doctest.h>

namespace tensor_parallel_test {

using namespace meshwright;

namespace {

const std::vector<std::vector<std::string>> kVariants = {
    {}, {kSequence}, {kSequence, kAsync}, {kBase}, {kSequence, kBase}};

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
