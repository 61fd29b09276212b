// What attention sends over the ranks of cp is what the plan says, to the byte. Before doctest:
// LibTorch has a CHECK of its own.
#include "engine/train/run/tests/context_layouts.h"

#include <doctest/doctest.h>

#include "engine/train/run/tests/traffic.h"
#include "engine/train/step/tests/causal_loss.h"

namespace context_wire_test {

using namespace meshwright;

namespace {

using Keys = std::vector<std::pair<std::string, std::string>>;

// A method, and what lies beside it.
struct Way {
  const char* name;
  int64_t ranks, cp;
  Keys keys;
  int64_t accumulation = 1, tp = 1;
};

const std::string kMethod = "distributed.context.method",
                  kUlyssesSize = "distributed.context.ulysses_size",
                  kCheckpointing = "distributed.activation_checkpointing";

const Keys kAutocast{{"distributed.autocast_dtype", "\"bfloat16\""}};

const std::vector<Way> kMethods = {
    {"all_gather", 2, 2, {{kMethod, "\"all_gather\""}}},
    {"ring", 2, 2, {{kMethod, "\"ring\""}}, 2},
    {"ulysses", 2, 2, {{kMethod, "\"ulysses\""}}},
    {"ring of four", 4, 4, {{kMethod, "\"ring\""}}},
    {"ulysses of four", 4, 4, {{kMethod, "\"ulysses\""}}},
    {"ring of ulysses", 4, 4, {{kMethod, "\"ring\""}, {kUlyssesSize, "2"}}},
    {"all_gather of ulysses", 4, 4, {{kMethod, "\"all_gather\""}, {kUlyssesSize, "2"}}},
    {"recomputed ring", 2, 2, {{kMethod, "\"ring\""}, {kCheckpointing, "\"full\""}}},
    {"recomputed ulysses", 2, 2, {{kMethod, "\"ulysses\""}, {kCheckpointing, "\"full\""}}},
    {"kept", 2, 2, {{kMethod, "\"all_gather\""}, {kCheckpointing, "\"selective\""}}},
    {"shards", 4, 2, {{kMethod, "\"all_gather\""}}},
};

void check_wire(const std::string& model, const Way& way, const Keys& more) {
  Case c{way.name, way.ranks, way.accumulation, way.keys, model, way.tp};
  c.keys.insert(c.keys.begin(), {"distributed.cp_size", std::to_string(way.cp)});
  c.keys.emplace_back("step_scheduler.global_batch_size",
                      std::to_string(2 * way.accumulation * way.ranks / way.cp / way.tp));
  c.keys.insert(c.keys.end(), more.begin(), more.end());
  std::mutex mutex;
  run_ranks(c.ranks, [&](const std::shared_ptr<World>& world) {
    WireRank rank(c, world, 16);
    Trainer& trainer = rank.trainer;
    INFO(std::string(c.name) << (more.empty() ? "" : " with " + more.front().first) << " of "
                             << model);
    check_traffic(
        *world, trainer,
        [&](int64_t) {
          at::Tensor ids = at::empty({trainer.local_batch(), 17}, at::kLong).fill_(3);
          return train::loss_of(trainer, rank.net, ids);
        },
        mutex);
  });
}

}  // namespace

// In float32 and bfloat16, beside every other axis: layouts_test.cpp.
TEST_CASE("context wire: by every method, in the dtype that attention computes in") {
  TestFolder folder("context_wire");
  // The windows of the second reach neighbours alone.
  size_t number = 0;  // half: every method with the one model or the other
  for (const SmallModel& m : {kGrouped, kMistral}) {
    size_t turn = number++;
    const std::string model = write_model(folder.path, m);
    for (const Way& way : kMethods)
      if (sampled(turn++, 2)) check_wire(model, way, kAutocast);
  }
}

TEST_CASE("context wire: heads that patterns with sets cut over tp are this rank's share") {
  TestFolder folder("context_wire_tp");
  // Those of attention alone, and those of the rest alone.
  const Keys cut = {{"distributed.tp_plan.\"model.layers.*.self_attn.[qkv]_proj\"", "\"colwise\""},
                    {"distributed.tp_plan.\"model.layers.*.self_attn.o_proj\"", "\"rowwise\""}},
             whole = {{"distributed.tp_plan.\"model.layers.*.mlp.[gu]*_proj\"", "\"colwise\""},
                      {"distributed.tp_plan.\"model.layers.*.mlp.down_proj\"", "\"rowwise\""}};
  const std::string model = write_model(folder.path, kGrouped);
  for (const Keys& plan : {cut, whole})
    for (const char* method : {"\"all_gather\"", "\"ring\"", "\"ulysses\""})
      check_wire(model, {method, 4, 2, {{kMethod, method}}, 1, 2}, plan);
}

}  // namespace context_wire_test
