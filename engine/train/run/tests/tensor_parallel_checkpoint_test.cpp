// A run that was saved under tensor parallelism goes on without it and the other way round: the
// same bits, the same losses. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/curves.h"
#include "engine/train/run/tests/saved.h"

#include <doctest/doctest.h>

namespace tensor_parallel_checkpoint_test {

using namespace meshwright;
namespace fs = std::filesystem;

namespace {

const SmallModel kOdd{
    "odd", "Qwen3ForCausalLM", "qwen3", 48, 6, 2, 257, R"(, "tie_word_embeddings": true)"};

std::vector<Layout> layouts(const SmallModel& m, const std::string& model) {
  std::vector<Layout> out;
  for (const OnMesh& mesh : {OnMesh{4, {kTp2, kSequence}},
                             {4, {kTp4, kSequence}},
                             {4, {}},
                             {2, {kTp2}},
                             {8, {kTp2, kReplicate2}},
                             {1, {}}})
    if (m.kv_heads % 4 == 0 || mesh.sets.empty() || mesh.sets[0] != kTp4)
      out.push_back(calm_layout(model, mesh));
  out.push_back(calm_layout(model, {2, {}}));
  out.back().strategy = "ddp";
  return out;
}

}  // namespace

TEST_CASE(
    "weights and moments are bitwise identical after loading on any other layout, and the next "
    "losses are the same") {
  TestFolder folder("tensor_parallel_checkpoint");
  for (const SmallModel& m : {kBiases, kOdd, kPhi3}) {
    INFO(m.name);
    CHECK(carried_over(layouts(m, write_model(folder.path, m)), folder.path / m.name) == "");
  }
}

TEST_CASE("fresh weights are bitwise identical on every layout") {
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

}  // namespace tensor_parallel_checkpoint_test
