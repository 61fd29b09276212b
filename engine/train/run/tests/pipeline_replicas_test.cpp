// Ranks that hold the same part of a parameter keep the same bits of it, whatever else each of them
// holds beside it: sizes here are no multiples of any vector. Before doctest: LibTorch has a CHECK
// of its own.
#include "engine/train/run/tests/pipeline_layouts.h"
#include "engine/train/run/tests/saved.h"

#include <doctest/doctest.h>

namespace pipeline_replicas_test {

using namespace meshwright;

namespace {

const SmallModel kOddExperts{
    "odd_experts",
    "MixtralForCausalLM",
    "mixtral",
    36,
    6,
    2,
    61,
    R"(, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 22, "sliding_window": null)"};
// The first stage of two has dense layers alone.
const SmallModel kDenseStage{
    "dense_stage",
    "Qwen3MoeForCausalLM",
    "qwen3_moe",
    32,
    4,
    2,
    64,
    R"(, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "norm_topk_prob": true,
"num_hidden_layers": 4, "mlp_only_layers": [0, 1], "intermediate_size": 48)"};

// What a save after three steps says against it on some rank; nothing: all copies are equal.
std::string told_at_save(const Layout& layout, const std::filesystem::path& folder) {
  std::string out;
  std::mutex mutex;
  run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
    Rank rank(layout, world);
    rank.initialize();
    for (int step = 0; step < 3; ++step) rank.step();
    try {
      rank.trainer.save(folder.string());
    } catch (const Error& error) {
      std::lock_guard lock(mutex);
      out = error.what();
    }
  });
  return out;
}

}  // namespace

TEST_CASE("copies stay equal to the bit, whatever lies beside them on their ranks") {
  TestFolder folder("pipeline_replicas");
  // Of dense models: layouts_test.cpp.
  const std::string model = write_model(folder.path, kOddExperts);
  for (const char* axis : {kTp2.c_str(), kPp2.c_str()}) {
    const Layout layout{"moe_ep", 4, {kEp2, axis}, model};
    INFO(layout.text());
    CHECK(told_at_save(layout, folder.path / axis) == "");
  }
}

TEST_CASE("a pipeline's stage without experts trains beside others that have some") {
  TestFolder folder("pipeline_dense_stage");
  const std::string model = write_model(folder.path, kDenseStage);
  const Curve truth = curve_of(staged_layout(model, kAlone), 4);
  for (const char* strategy : {"moe_ep", "fsdp2"}) {
    Layout layout = staged_layout(model, {4, {kPp2, kEp2}});
    layout.strategy = strategy;
    INFO(layout.text());
    CHECK(strays(curve_of(layout, 4), truth) == "");
    CHECK(told_at_save(layout, folder.path / strategy) == "");
  }
  // Of the whole model the question stands.
  const std::string dense = write_model(folder.path, kStaged);
  run_ranks(4, [&](const std::shared_ptr<World>& world) {
    Layout layout = staged_layout(dense, {4, {kPp2, kEp2}});
    try {
      Rank rank(layout, world);
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::model_does_not_fit);
      CHECK(error.key() == "distributed.ep_size");
    }
  });
}

}  // namespace pipeline_replicas_test
