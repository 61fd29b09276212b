// What the all-to-all dispatcher sends in a training step, beside the plan: the same to the byte
// where routing is even, and in proportion to the rows that leave their rank where it is not.
#include <ATen/ops/randint.h>
#include <doctest/doctest.h>

#include <numeric>

#include "engine/train/run/tests/traffic.h"
#include "engine/train/step/tests/causal_loss.h"
#include "meshwright/nn/moe.h"
#include "meshwright/parallel/testing.h"

namespace expert_wire_test {

using namespace meshwright;

namespace {

using Key = std::pair<std::string, std::string>;

const Key kEp2{"distributed.ep_size", "2"}, kEp4{"distributed.ep_size", "4"},
    kBalanced{"distributed.moe.fake_balanced_gate", "true"},
    kFull{"distributed.activation_checkpointing", "\"full\""},
    kSelective{"distributed.activation_checkpointing", "\"selective\""},
    kReshard{"distributed.moe.reshard_after_forward", "true"},
    kReplicate{"distributed.dp_replicate_size", "2"},
    kEvery{"distributed.fsdp2.defer_fsdp_grad_sync", "false"},
    kHalf{"distributed.mp_policy.param_dtype", "\"bfloat16\""},
    kAttention{"distributed.tp_plan",
               "{\"model.layers.*.self_attn.q_proj\"=\"colwise\",\"model.layers.*.self_attn.k_"
               "proj\"=\"colwise\","
               "\"model.layers.*.self_attn.v_proj\"=\"colwise\",\"model.layers.*.self_attn.o_"
               "proj\"=\"rowwise\"}"};

MicroBatchLoss loss_of(WireRank& rank) {
  return train::loss_of(rank.trainer, rank.net,
                        at::randint(rank.net->outline().vocab_size, {2, 17}, at::kLong));
}

// Rows that leave one rank for each place in its group of ep, of all its blocks in the passes of a
// step.
using Leaving = std::vector<int64_t>;

}  // namespace

TEST_CASE(
    "the all-to-all of experts that are chosen in turns is the plan's, to the byte, forward and "
    "backward") {
  for (const Case& c : std::vector<Case>{
           {"two ranks", 2, 1, {kEp2, kBalanced}, "mixtral-tiny"},
           {"micro-batches", 2, 3, {kEp2, kBalanced}, "mixtral-tiny"},
           {"four ranks", 4, 1, {kEp4, kBalanced}, "mixtral-tiny"},
           {"shards of experts, recomputed", 4, 1, {kEp2, kBalanced, kFull}, "mixtral-tiny"},
           {"mlps recomputed", 2, 2, {kEp2, kBalanced, kSelective}, "mixtral-tiny"},
           {"freed after forward", 4, 1, {kEp2, kBalanced, kReshard}, "mixtral-tiny"},
           {"beside replicas", 4, 2, {kEp2, kBalanced, kReplicate, kEvery}, "mixtral-tiny"},
           {"beside tensor parallelism", 4, 1, {kEp2, kBalanced, kAttention}, "mixtral-tiny", 2},
           {"in bfloat16", 2, 1, {kEp2, kBalanced, kHalf}, "mixtral-tiny"}}) {
    INFO(c.name);
    std::mutex mutex;
    run_ranks(c.ranks, [&](const std::shared_ptr<World>& world) {
      WireRank rank(c, world, 32);
      {
        std::lock_guard lock(mutex);
        CHECK(planned_rows(rank.trainer).contains({"ep", "all_to_all"}));
      }
      check_traffic(*world, rank.trainer, [&](int64_t) { return loss_of(rank); }, mutex);
    });
  }
}

TEST_CASE(
    "the all-to-all of experts that a router chooses is what the plan says for each row that "
    "leaves its rank") {
  int uneven = 0;
  for (const Case& c :
       std::vector<Case>{{"two ranks", 2, 1, {kEp2}, "mixtral-tiny"},
                         {"micro-batches", 2, 2, {kEp2}, "mixtral-tiny"},
                         {"four ranks", 4, 1, {kEp4}, "mixtral-tiny"},
                         {"shards of experts, recomputed", 4, 1, {kEp2, kFull}, "mixtral-tiny"},
                         {"in bfloat16", 2, 1, {kEp2, kHalf}, "mixtral-tiny"}}) {
    INFO(c.name);
    std::mutex mutex;
    std::map<int64_t, Leaving> leaving;  // by rank
    std::map<int64_t, int64_t> sent;
    const bool again = std::find(c.keys.begin(), c.keys.end(), kFull) != c.keys.end();
    const int64_t element = std::find(c.keys.begin(), c.keys.end(), kHalf) != c.keys.end() ? 2 : 4;
    run_ranks(c.ranks, [&](const std::shared_ptr<World>& world) {
      WireRank rank(c, world, 32);
      const Mesh& moe = *rank.trainer.plan().mesh.moe_mesh;
      const MoeOutline& outline = *rank.net->outline().moe;
      const int64_t ep = moe.size("ep"), here = outline.experts / ep,
                    me = moe.coordinate(world->rank(), "ep");
      Leaving mine(static_cast<size_t>(ep), 0);
      for (auto& [name, block] : find_moe_blocks(*rank.net))
        HookHost::of(*block->gate())
            ->after_forward.emplace_back([&](torch::nn::Module&, TensorRefs& routing) {
              at::Tensor to = routing.at(1)->div(here, "floor");
              for (int64_t place = 0; place < ep; ++place)
                if (place != me)
                  mine[static_cast<size_t>(place)] += to.eq(place).sum().item<int64_t>();
            });
      for (int step = 0; step < 2; ++step) {
        std::fill(mine.begin(), mine.end(), 0);
        world->traffic().clear();
        rank.trainer.step([&](int64_t) { return loss_of(rank); });
        auto [count, bytes] = sent_rows(*world).at({"ep", "all_to_all"});
        {
          std::lock_guard lock(mutex);
          CHECK(count == planned_rows(rank.trainer).at({"ep", "all_to_all"}).first);
          leaving[world->rank()] = mine;
          sent[world->rank()] = bytes;
        }
        world->everyone()->barrier();
        // Each row goes to its expert with its weight and comes back alone; its gradient goes there
        // alone and comes back with that of its weight. What layers that are computed again send
        // twice is the way of the rows, not that of the gradients.
        {
          std::lock_guard lock(mutex);
          int64_t out = std::accumulate(mine.begin(), mine.end(), int64_t{0}), in = 0;
          for (int64_t peer : moe.group(world->rank(), "ep"))
            in += leaving.at(peer)[static_cast<size_t>(me)];
          int64_t runs = again ? 2 : 1, row = rank.net->outline().hidden_size * element;
          CHECK(bytes ==
                out * (row + element) + in * row + (out * row + in * (row + element)) / runs);
          if (world->rank() == 0) {
            // Together they send what the plan says, in proportion to the rows that an even routing
            // would have sent away.
            int64_t all = 0, gone = 0;
            for (const auto& [r, its] : sent) all += its;
            for (const auto& [r, its] : leaving)
              gone += std::accumulate(its.begin(), its.end(), int64_t{0});
            int64_t assignments =
                32 * outline.active_experts * c.accumulation * runs * rank.net->outline().layers;
            double even = static_cast<double>(c.ranks * assignments) * static_cast<double>(ep - 1) /
                          static_cast<double>(ep);
            auto planned = static_cast<double>(
                planned_rows(rank.trainer).at({"ep", "all_to_all"}).second * c.ranks);
            CHECK(static_cast<double>(all) / planned ==
                  doctest::Approx(static_cast<double>(gone) / even).epsilon(1e-9));
            if (gone != static_cast<int64_t>(even)) ++uneven;
          }
        }
        world->everyone()->barrier();  // nobody counts anew while another still reads
      }
    });
  }
  CHECK(uneven > 0);  // or this would be the test above
}

}  // namespace expert_wire_test
