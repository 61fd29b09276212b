// Samples divided over the ranks of cp: every model takes the steps of one process on every mesh,
// by every method. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/tests/context_layouts.h"

#include <doctest/doctest.h>

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

}  // namespace context_parallel_test
