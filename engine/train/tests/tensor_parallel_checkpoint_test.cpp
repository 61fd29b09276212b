// A run that was saved under tensor parallelism goes on without it and the other way round: the same bits, the same losses.
// Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/tests/curves.h"
#include "engine/train/tests/saved.h"

#include <doctest/doctest.h>

#include "engine/checkpoint/verify.h"

using namespace meshwright;
namespace fs = std::filesystem;

namespace {

const SmallModel kOdd{"odd", "Qwen3ForCausalLM", "qwen3", 48, 6, 2, 257, R"(, "tie_word_embeddings": true)"};

std::vector<Layout> layouts(const SmallModel& m, const std::string& model) {
  std::vector<Layout> out;
  for (const OnMesh& mesh : {OnMesh{4, {kTp2, kSequence}}, {4, {kTp4, kSequence}}, {4, {}}, {2, {kTp2}}, {8, {kTp2, kReplicate2}}, {1, {}}})
    if (m.kv_heads % 4 == 0 || mesh.sets.empty() || mesh.sets[0] != kTp4) out.push_back(calm_layout(model, mesh));
  out.push_back(calm_layout(model, {2, {}}));
  out.back().strategy = "ddp";
  return out;
}

}  // namespace

TEST_CASE("weights and moments are the same to the bit after loading on any other layout, and the next losses are the same") {
  TestFolder folder("tensor_parallel_checkpoint");
  for (const SmallModel& m : {kBiases, kOdd, kPhi3}) {
    std::vector<Layout> all = layouts(m, write_model(folder.path, m));
    for (size_t a = 0; a < all.size(); ++a) {
      INFO(m.name << ", from " << all[a].text());
      fs::path saved = folder.path / (m.name + std::string(" from ") + std::to_string(a));
      std::vector<double> unbroken = losses_of(all[a], {}, 8, saved, 3);
      CHECK(checkpoint::verify_checkpoint(saved / "step_00000003", [](int64_t) {}).damage.empty());
      std::map<std::string, std::string> kept = contents(saved / "step_00000003");
      for (size_t b = 0; b < all.size(); ++b) {
        // From tp 2 x shard 2 to all, from the others back to it.
        if (a != 0 && b != 0) continue;
        INFO("to " << all[b].text());
        fs::path again = saved / ("to " + std::to_string(b));
        std::vector<double> losses = losses_of(all[b], saved, 5, again, 0);
        CHECK(contents(again / "step_00000003") == kept);
        REQUIRE(losses.size() == 5);
        double worst = 0;
        for (size_t i = 0; i < 5; ++i) worst = std::max(worst, std::abs(losses[i] - unbroken[i + 3]));
        CHECK(worst <= (a == b ? 0 : 1e-6));
      }
    }
  }
}

TEST_CASE("fresh weights are the same to the bit on every layout") {
  TestFolder folder("tensor_parallel_checkpoint");
  for (const SmallModel& m : {kBiases, kOdd, kGemma3, kPhi3}) {
    std::map<std::string, std::string> first;
    for (const Layout& layout : layouts(m, write_model(folder.path, m))) {
      INFO(m.name << ": " << layout.text());
      fs::path saved = folder.path / "fresh";
      fs::remove_all(saved);
      losses_of(layout, {}, 0, saved, 0);
      std::map<std::string, std::string> kept = contents(saved / "step_00000000");
      if (first.empty()) first = kept;
      CHECK(kept == first);
    }
  }
}
