// Votes: what one rank raises, all learn of in the same step, once. Before doctest: LibTorch has a
// CHECK of its own.
#include "engine/train/run/tests/context_layouts.h"

#include <doctest/doctest.h>

namespace votes_test {

using namespace meshwright;

TEST_CASE(
    "a vote of any rank is counted once, in the same step on every rank, and evaluation leaves it "
    "alone") {
  // Of four and of two ranks of tp, with whole logits.
  for (const Layout& layout : {Layout{"ddp", 3, {}, kModel, 6}, Layout{"fsdp2", 3, {}, kModel, 6},
                               Layout{"fsdp2", 4, {kTp2, kBase}, kModel, 6},
                               Layout{"fsdp2", 2, {kTp2, kBase}, kModel, 6}}) {
    INFO(layout.text());
    using Counts = std::array<int64_t, kVotes>;
    std::vector<std::vector<Counts>> seen(static_cast<size_t>(layout.ranks));
    run_ranks(layout.ranks, [&](const std::shared_ptr<World>& world) {
      Rank rank(layout, world);
      rank.initialize();
      Trainer& trainer = rank.trainer;
      auto loss = [&] {
        return train::loss_of(trainer, rank.net,
                              samples_of(trainer.data_parallel_rank(), 1, kLength, 256));
      };
      for (int step = 0; step < 4; ++step) {
        if (step == 1 && world->rank() == 1) {
          trainer.vote(RankSignal::stop);
          trainer.vote(RankSignal::stop);  // of one rank, however often
        }
        if (step == 1) trainer.evaluate(1, [&](int64_t) { return loss(); });
        if (step == 1) trainer.vote(RankSignal::background_done);
        const StepResult result = trainer.step([&](int64_t micro) {
          if (step == 2 && world->rank() == layout.ranks - 1 && micro == 1)
            trainer.vote(RankSignal::background_failed);
          return loss();
        });
        CHECK(result.votes(RankSignal::stop) == result.vote_counts[0]);
        seen[static_cast<size_t>(world->rank())].push_back(result.vote_counts);
      }
    });
    for (const std::vector<Counts>& mine : seen)
      CHECK((mine == std::vector<Counts>{{0, 0, 0}, {1, layout.ranks, 0}, {0, 0, 1}, {0, 0, 0}}));
  }
}

}  // namespace votes_test
