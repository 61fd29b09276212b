// Votes: what one rank raises, all learn of in the same step, once.
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <doctest/doctest.h>

#include <mutex>
#include <vector>

#include "engine/models/running/causal_lm.h"
#include "engine/models/running/initialize.h"
#include "meshwright/parallel/testing.h"
#include "meshwright/trainer.h"

namespace votes_test {

using namespace meshwright;

namespace {

const std::string kModel = MESHWRIGHT_SOURCE_DIR "/configs/models/llama-tiny.json";

MicroBatchLoss loss_of(modules::CausalLM& net) {
  at::Tensor ids = at::randint(0, 256, {1, 9}, at::kLong);
  at::Tensor logits = net(ids.narrow(1, 0, 8));
  return {at::cross_entropy_loss(logits.flatten(0, 1), ids.narrow(1, 1, 8).flatten(), {},
                                 at::Reduction::Sum, -100),
          8};
}

}  // namespace

TEST_CASE(
    "a vote of any rank is counted once, in the same step on every rank, and evaluation leaves it "
    "alone") {
  struct Row {
    const char *strategy, *tp;
    int64_t ranks;
  };
  for (const Row& row : {Row{"\"ddp\"", "1", 3},
                         {"\"fsdp2\"", "1", 3},
                         {"\"fsdp2\"", "2", 4},
                         {"\"fsdp2\"", "2", 2}}) {
    INFO(std::string(row.strategy) << " on " << row.ranks << ", tp " << std::string(row.tp));
    std::mutex mutex;
    std::vector<std::vector<std::array<int64_t, kVotes>>> seen(static_cast<size_t>(row.ranks));
    run_ranks(row.ranks, [&](const std::shared_ptr<World>& world) {
      Job job =
          Job::from_text("schema = 1\n[model]\nconfig = \"" + kModel +
                         "\"\n[distributed.mp_policy]\nparam_dtype = \"float32\"\noutput_dtype = "
                         "\"float32\"\n[dataset]\nkind = \"mock\"\nseq_len = 8\n"
                         "[step_scheduler]\nlocal_batch_size = 1\nglobal_batch_size = 6\n");
      job.set("distributed.strategy", row.strategy);
      job.set("distributed.tp_size", row.tp);
      if (row.ranks % 2 == 0) job.set("distributed.tp_plan", "\"base\"");  // whole logits
      modules::CausalLM net = modules::build_model(kModel, DType::float32, at::kMeta);
      Trainer trainer(job, world, net.ptr(), net->outline(), 8);
      for (const ParallelParameter& p : trainer.model().parameters())
        modules::initialize(*net, p, 1);
      trainer.model().after_optimizer_step();
      auto rank = world->rank();
      std::vector<std::array<int64_t, kVotes>> mine;
      for (int step = 0; step < 4; ++step) {
        if (step == 1 && rank == 1) {
          trainer.vote(RankSignal::stop);
          trainer.vote(RankSignal::stop);  // of one rank, however often
        }
        if (step == 1) trainer.evaluate(1, [&](int64_t) { return loss_of(net); });
        if (step == 1) trainer.vote(RankSignal::background_done);
        StepResult result = trainer.step([&](int64_t micro) {
          if (step == 2 && rank == row.ranks - 1 && micro == 1)
            trainer.vote(RankSignal::background_failed);
          return loss_of(net);
        });
        CHECK(result.votes(RankSignal::stop) == result.vote_counts[0]);
        mine.push_back(result.vote_counts);
      }
      std::lock_guard lock(mutex);
      seen[static_cast<size_t>(rank)] = mine;
    });
    for (const auto& mine : seen) {
      REQUIRE(mine.size() == 4);
      CHECK(mine[0] == std::array<int64_t, kVotes>{0, 0, 0});
      CHECK(mine[1] == std::array<int64_t, kVotes>{1, row.ranks, 0});
      CHECK(mine[2] == std::array<int64_t, kVotes>{0, 0, 1});
      CHECK(mine[3] == std::array<int64_t, kVotes>{0, 0, 0});
    }
  }
}

}  // namespace votes_test
