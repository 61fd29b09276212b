// Samples divided over the ranks of cp: every model takes the steps of one process on every mesh,
// by every method, and sends what its plan says. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/tests/context_layouts.h"

#include <doctest/doctest.h>

#include "engine/train/tests/traffic.h"

namespace context_parallel_test {

using namespace meshwright;

namespace {

const std::string kEp2 = "distributed.ep_size=2",
                  kContiguous = "distributed.context.load_balancer=\"none\"";

}  // namespace

TEST_CASE("context parallel: twenty steps by every method, for every family") {
  TestFolder folder("context_parallel");
  for (const SmallModel& m : {kGrouped, kMistral, kGemma3, kQwen3, kLongRope}) {
    const std::string model = write_model(folder.path, m);
    const Curve truth = curve_of(context_layout(model, kAlone), 20);
    for (const OnMesh& mesh : {OnMesh{2, {kCp2}}, {4, {kCp4}}})
      for (const std::string& method : {kGather, kRing, kUlysses}) {
        const Layout layout = context_layout(model, mesh, {method});
        INFO(m.name << ": " << layout.text());
        CHECK(strays(curve_of(layout, 20), truth) == "");
      }
  }
}

TEST_CASE("context parallel: with tensor parallelism, shards, replicas, padding and recomputing") {
  TestFolder folder("context_parallel_meshes");
  const std::string model = write_model(folder.path, kGrouped);
  const Curve truth = curve_of(context_layout(model, kAlone), 20);
  for (const auto& [mesh, more] : std::vector<std::pair<OnMesh, std::vector<std::string>>>{
           {{3, {kCp3}}, {kGather}},  // eight tokens padded to twelve
           {{3, {kCp3}}, {kRing}},
           {{2, {kCp2}}, {kContiguous, kRing}},
           {{4, {kCp4}}, {kRing, "distributed.context.ulysses_size=2"}},
           {{4, {kCp4}}, {kGather, "distributed.context.ulysses_size=2"}},
           {{4, {kCp2}}, {kGather}},  // two shards
           {{4, {kCp2, kTp2}}, {kRing}},
           {{4, {kCp2, kTp2}}, {kUlysses, kSequence}},
           {{8, {kCp2, kReplicate2}}, {kGather}},
           {{2, {kCp2}}, {kRing, "distributed.activation_checkpointing=\"full\""}},
           {{2, {kCp2}}, {kGather, "distributed.activation_checkpointing=\"selective\""}},
           {{2, {kCp2}}, {kUlysses, "distributed.fsdp2.offload_policy=\"cpu\""}}}) {
    const Layout layout = context_layout(model, mesh, more);
    INFO(layout.text());
    CHECK(strays(curve_of(layout, 20), truth) == "");
  }
  // Micro-batches add up; and under the other strategies that shard.
  for (const char* strategy : {"fsdp2", "megatron_fsdp"}) {
    Layout layout =
        context_layout(model, {2, {kCp2}}, {kRing, "step_scheduler.local_batch_size=3"});
    layout.strategy = strategy;
    INFO(layout.text());
    CHECK(strays(curve_of(layout, 20), truth) == "");
  }
}

TEST_CASE("context parallel: experts, whose balance counts the tokens of all ranks") {
  TestFolder folder("context_parallel_experts");
  for (const SmallModel& m : {kMixtral, kBalanced}) {
    const std::string model = write_model(folder.path, m);
    // A balance loss is one of each pass: one process takes the passes of two data-parallel ranks
    // in turns.
    const Curve truth = curve_of(context_layout(model, kAlone), 12),
                halves = curve_of(
                    context_layout(model, kAlone, {"step_scheduler.local_batch_size=6"}), 12);
    for (const auto& [mesh, more] : std::vector<std::pair<OnMesh, std::vector<std::string>>>{
             {{2, {kCp2}}, {kGather}},
             {{2, {kCp2, kEp2}}, {kRing}},
             {{3, {kCp3}}, {kRing}},  // padding is routed nowhere
             {{4, {kCp2, kEp2}}, {kUlysses}},
             {{2, {kCp2, kEp2}}, {kGather, "distributed.activation_checkpointing=\"full\""}}}) {
      const Layout layout = context_layout(model, mesh, more);
      INFO(m.name << ": " << layout.text());
      CHECK(strays(curve_of(layout, 12), mesh.ranks == 4 ? halves : truth) == "");
    }
  }
}

TEST_CASE("context parallel: a step sends what its plan says") {
  TestFolder folder("context_parallel_wire");
  const std::string grouped = write_model(folder.path, kGrouped),
                    windows = write_model(folder.path, kMistral);
  std::mutex mutex;
  for (Case c : {Case{"gather", 2, 1, {{"distributed.context.method", "\"all_gather\""}}},
                 Case{"ring", 2, 2, {{"distributed.context.method", "\"ring\""}}},
                 Case{"ulysses", 2, 1, {{"distributed.context.method", "\"ulysses\""}}},
                 Case{"recomputed",
                      2,
                      1,
                      {{"distributed.context.method", "\"ring\""},
                       {"distributed.activation_checkpointing", "\"full\""}}},
                 Case{"kept",
                      2,
                      1,
                      {{"distributed.context.method", "\"all_gather\""},
                       {"distributed.activation_checkpointing", "\"selective\""}}},
                 Case{"of four",
                      4,
                      1,
                      {{"distributed.cp_size", "4"}, {"distributed.context.method", "\"ring\""}}},
                 Case{"both",
                      4,
                      1,
                      {{"distributed.cp_size", "4"},
                       {"distributed.context.method", "\"ring\""},
                       {"distributed.context.ulysses_size", "2"}}},
                 Case{"shards", 4, 1, {{"distributed.context.method", "\"all_gather\""}}}})
    for (const std::string& model : {grouped, windows}) {
      const bool four = std::string(c.name) == "of four" || std::string(c.name) == "both";
      c.model = model;
      c.keys.insert(c.keys.begin(), {"distributed.cp_size", four ? "4" : "2"});
      c.keys.emplace_back("step_scheduler.global_batch_size",
                          std::to_string(2 * c.accumulation * c.ranks / (four ? 4 : 2)));
      run_ranks(c.ranks, [&](const std::shared_ptr<World>& world) {
        Job job = job_of(c);
        modules::CausalLM net = modules::build_model(model, DType::float32, at::kMeta);
        Trainer trainer(job, world, net.ptr(), net->outline(), 16);
        for (const ParallelParameter& p : trainer.model().parameters())
          modules::initialize(*net, p, 1);
        trainer.model().after_optimizer_step();
        INFO(c.name);
        check_traffic(
            *world, trainer,
            [&](int64_t) {
              at::Tensor ids = at::empty({trainer.local_batch(), 17}, at::kLong).fill_(3);
              return train::loss_of(trainer, net, ids);
            },
            mutex);
      });
    }
}

}  // namespace context_parallel_test
