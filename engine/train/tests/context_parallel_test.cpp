// Samples divided over the ranks of cp in other ways than those of the matrix of families and axes:
// the steps are those of one process. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/tests/context_layouts.h"

#include <doctest/doctest.h>

namespace context_parallel_test {

using namespace meshwright;

namespace {

const std::string kContiguous = "distributed.context.load_balancer=\"none\"";

}  // namespace

TEST_CASE(
    "context parallel: padded, in order, by two methods at once, offloaded and in micro-batches") {
  TestFolder folder("context_parallel_meshes");
  const std::string model = write_model(folder.path, kGrouped);
  const Curve truth = curve_of(context_layout(model, kAlone), 20);
  for (const auto& [mesh, more] : std::vector<std::pair<OnMesh, std::vector<std::string>>>{
           {{3, {kCp3}}, {kGather}},  // eight tokens padded to twelve
           {{3, {kCp3}}, {kRing}},
           {{2, {kCp2}}, {kContiguous, kRing}},
           {{4, {kCp4}}, {kRing, "distributed.context.ulysses_size=2"}},
           {{4, {kCp4}}, {kGather, "distributed.context.ulysses_size=2"}},
           {{4, {kCp2, kTp2}}, {kUlysses, kSequence}},
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

}  // namespace context_parallel_test
