// Where the random numbers of a rank begin. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/generators.h"

#include <map>
#include <set>

#include "engine/train/load_checkpoint.h"
#include "engine/train/tests/context_layouts.h"
#include "engine/train/tests/saved.h"
#include "meshwright/trainer.h"

#include <doctest/doctest.h>

namespace generators_test {

using namespace meshwright;

namespace {

plan::JobPlan plan_of(const char* strategy, int64_t world, int64_t rank,
                      const std::vector<std::string>& sets) {
  std::vector<std::string> all{"distributed.strategy=" + std::string(strategy)};
  all.insert(all.end(), sets.begin(), sets.end());
  Job job = Job::from_text("schema = 1\n", all);
  return plan::make_plan(job.impl(), {.world_size = world, .rank = rank, .assumed_world = true});
}

}  // namespace

TEST_CASE("generators: ranks of tp draw alike, those of dp and cp do not") {
  for (const char* strategy : {"fsdp2", "megatron_fsdp"})
    for (const auto& sets :
         std::vector<std::vector<std::string>>{{"distributed.tp_size=2", "distributed.cp_size=2"},
                                               {"distributed.tp_size=2"},
                                               {"distributed.cp_size=4"}}) {
      // By the coordinates of dp and cp.
      std::map<std::pair<int64_t, int64_t>, std::set<uint64_t>> seeds;
      std::set<uint64_t> all;
      for (int64_t rank = 0; rank < 8; ++rank) {
        const plan::JobPlan plan = plan_of(strategy, 8, rank, sets);
        const Mesh& mesh = *plan.mesh.device_mesh;
        const uint64_t seed = train::generator_seed(7, 3, plan);
        seeds[{mesh.coordinate(rank, "dp"), mesh.coordinate(rank, "cp")}].insert(seed);
        all.insert(seed);
        CHECK(train::generator_seed(7, 4, plan) != seed);
        CHECK(train::generator_seed(8, 3, plan) != seed);
      }
      CHECK(all.size() == seeds.size());
      CHECK(seeds.size() == (sets[0] == "distributed.tp_size=2" ? 4 : 8));
      for (const auto& [place, of_place] : seeds) CHECK(of_place.size() == 1);
    }
  std::set<uint64_t> replicas;
  for (int64_t rank = 0; rank < 3; ++rank)
    replicas.insert(train::generator_seed(7, 0, plan_of("ddp", 3, rank, {})));
  CHECK(replicas.size() == 3);
}

TEST_CASE("generators: a checkpoint restores them where the same ranks draw alike") {
  TestFolder folder("generators");
  const Layout dp{"fsdp2", 2}, cp{"fsdp2", 2, {kCp2, kRing}}, tp{"fsdp2", 2, {kTp2}};
  for (const Layout* from : {&dp, &cp, &tp}) {
    const std::filesystem::path saved = folder.path / ("of " + from->text());
    losses_of(*from, {}, 1, saved, 1);
    for (const Layout* to : {&dp, &cp, &tp}) {
      std::mutex mutex;
      run_ranks(2, [&](const std::shared_ptr<World>& world) {
        Rank rank(*to, world);
        checkpoint::Checkpoint read(saved / "step_00000001");
        const bool restored = train::load_checkpoint(rank.trainer, read);
        std::lock_guard lock(mutex);
        INFO(from->text() << ", then " << to->text());
        CHECK(restored == (from == to));
      });
    }
  }
}

}  // namespace generators_test
