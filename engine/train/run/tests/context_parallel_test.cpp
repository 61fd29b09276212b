// Samples divided over the ranks of cp in other ways than those of layouts_test.cpp: the steps are
// those of one process. Before doctest: LibTorch has a CHECK of its own.
#include "engine/train/run/tests/context_layouts.h"
#include "engine/train/run/tests/packed.h"
#include "engine/train/step/logits.h"
#include "meshwright/parallel/testing.h"
#include "sdk/comm/tests/sampled.h"

#include <doctest/doctest.h>

namespace context_parallel_test {

using namespace meshwright;

namespace {

const std::string kContiguous = "distributed.context.load_balancer=\"none\"";

struct Asked {
  int64_t sums = 0;  // of control, in a step
  double norm = 0;
};

// A step of `batch` micro-batches whose targets are not evenly divided over two ranks. `told`: as
// the engine's own loop does; else as that of a program, whose ranks ask each other.
Asked balanced_step(const std::string& model, int64_t batch, bool told) {
  Asked out;
  run_ranks(2, [&](const std::shared_ptr<World>& world) {
    const Layout layout{"fsdp2", 2, {kCp2, kRing, "optimizer.eps=1e-5"}, model, batch};
    Rank rank(layout, world);
    rank.initialize();
    world->traffic().clear();
    const StepResult result = rank.trainer.step([&](int64_t micro, const at::Tensor& hidden) {
      const at::Tensor ids = samples_of(micro, 1, kLength, rank.net->outline().vocab_size);
      MicroBatchLoss loss =
          train::loss_of(rank.trainer, rank.net, packed(ids, ids[0][2].item<int64_t>()), hidden);
      if (!told) train::routers_of(rank.trainer).tell_weight(std::nullopt);
      return loss;
    });
    if (world->rank() != 0) return;
    for (const TrafficCounter::Row& row : world->traffic().rows())
      if (row.axis == "control" && row.op == "all_reduce") out.sums += row.count;
    out.norm = result.grad_norm;
  });
  return out;
}

}  // namespace

TEST_CASE("context parallel: padded, in order and by two methods at once") {
  TestFolder folder("context_parallel_meshes");
  const std::string model = write_model(folder.path, kGrouped);
  const int steps = steps_of(6, 20);
  const Curve truth = curve_of(context_layout(model, kAlone), steps);
  for (const auto& [mesh, more] : std::vector<std::pair<OnMesh, std::vector<std::string>>>{
           {{3, {kCp3}}, {kGather}},  // eight tokens padded to twelve
           {{2, {kCp2}}, {kContiguous, kRing}},
           {{4, {kCp4}}, {kGather, "distributed.context.ulysses_size=2"}},
           {{4, {kCp4}}, {kUlysses}}}) {
    const Layout layout = context_layout(model, mesh, more);
    INFO(layout.text());
    CHECK(strays(curve_of(layout, steps), truth) == "");
  }
}

// The one sum of each micro-batch is that of the loss's own numbers, which stay on a device.
TEST_CASE("context parallel: ranks that read whole samples ask nobody what their targets weigh") {
  TestFolder folder("context_parallel_balanced");
  const std::string model = write_model(folder.path, kBalanced);
  const Asked few = balanced_step(model, 3, true), many = balanced_step(model, 6, true),
              few_asking = balanced_step(model, 3, false),
              many_asking = balanced_step(model, 6, false);
  CHECK(many.sums - few.sums == 3);
  CHECK(many_asking.sums - few_asking.sums == 2 * 3);
  CHECK(many.norm == doctest::Approx(many_asking.norm).epsilon(1e-6));
}

}  // namespace context_parallel_test
