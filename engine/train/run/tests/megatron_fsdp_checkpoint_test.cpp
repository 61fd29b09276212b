// Checkpoints of megatron_fsdp, ddp and fsdp2 are bitwise identical, whichever loads what the
// other saved. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/megatron_fsdp.h"
#include "engine/train/run/tests/saved.h"

#include <doctest/doctest.h>

#include "engine/checkpoint/inspect.h"

namespace megatron_fsdp_checkpoint_test {

using namespace meshwright;
namespace fs = std::filesystem;

namespace {

struct Kind {
  const char* strategy;
  int64_t ranks, tp;
  int level = -1;
};

Layout layout_of(const Kind& kind, const std::string& model) {
  std::vector<std::string> sets;
  if (kind.level >= 0) sets.push_back(flat_level(kind.level));
  Layout out = flat_layout(model, kind.ranks, kind.tp, 1, sets);
  out.strategy = kind.strategy;
  return out;
}

}  // namespace

TEST_CASE(
    "weights and moments saved under one strategy are bitwise identical under another, and the "
    "next losses are the same") {
  TestFolder folder("megatron_fsdp_checkpoint");
  const std::vector<Kind> kinds = {{"megatron_fsdp", 3, 1, 3},
                                   {"megatron_fsdp", 4, 2, 3},
                                   {"ddp", 2, 1},
                                   {"fsdp2", 4, 2},
                                   {"megatron_fsdp", 4, 2, 1},
                                   {"megatron_fsdp", 2, 1, 2},
                                   {"fsdp2", 3, 1},
                                   {"megatron_fsdp", 2, 1, 0},
                                   {"megatron_fsdp", 6, 2, 2}};
  const SmallModel odd{"odd",   "Qwen3ForCausalLM",
                       "qwen3", 48,
                       6,       2,
                       257,     R"(, "tie_word_embeddings": true, "intermediate_size": 41)"};
  for (const SmallModel& m : {kBiases, kPhi3, odd}) {
    std::string model = write_model(folder.path, m);
    for (size_t a = 0; a < kinds.size(); ++a) {
      Layout from = layout_of(kinds[a], model);
      INFO(m.name << ", from " << from.text());
      fs::path saved = folder.path / (m.name + std::string(" from ") + std::to_string(a));
      std::vector<double> unbroken = losses_of(from, {}, 5, saved, 3);
      CHECK(checkpoint::verify_checkpoint(saved / "step_00000003", [](int64_t) {}).damage.empty());
      std::map<std::string, std::string> kept = contents(saved / "step_00000003");
      for (size_t b = 0; b < kinds.size(); ++b) {
        // The first two and the peers' strategies to all, all to them; of the latter half.
        if (a > 3 && b > 3) continue;
        if (a > 1 && b > 1 && !sampled(a + b, 2)) continue;
        if (m.name != kBiases.name && ((a > 1 && b > 1) || !sampled(a + b, 2))) continue;
        Layout to = layout_of(kinds[b], model);
        INFO("to " << to.text());
        fs::path again = saved / ("to " + std::to_string(b));
        std::vector<double> losses = losses_of(to, saved, 2, again, 0);
        CHECK(contents(again / "step_00000003") == kept);
        REQUIRE(losses.size() == 2);
        for (size_t i = 0; i < 2; ++i)
          CHECK(std::abs(losses[i] - unbroken[i + 3]) <= (a == b ? 0 : 1e-6));
      }
    }
  }
}

TEST_CASE(
    "fresh weights are bitwise identical at every level, also of what tensor parallelism cuts "
    "along columns") {
  TestFolder folder("megatron_fsdp_checkpoint");
  for (const SmallModel& m : {kBiases, kGemma3, kPhi3}) {
    std::string model = write_model(folder.path, m);
    std::map<std::string, std::string> first;
    for (const Kind& kind : std::vector<Kind>{{"ddp", 1, 1},
                                              {"megatron_fsdp", 3, 1, 3},
                                              {"megatron_fsdp", 6, 2, 3},
                                              {"megatron_fsdp", 4, 4, 3},
                                              {"megatron_fsdp", 4, 2, 1},
                                              {"megatron_fsdp", 2, 1, 0}}) {
      Layout layout = layout_of(kind, model);
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

}  // namespace megatron_fsdp_checkpoint_test
