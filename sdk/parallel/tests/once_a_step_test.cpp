// What trains beside frozen parameters as a unit once a step: when it is gathered and reduced, and
// how long it is there. That it trains as other units do: equality_test.cpp.
#include "meshwright/parallel/sharded_units.h"
#include "meshwright/parallel/testing.h"
#include "tiny_model.h"

#include <c10/core/GradMode.h>
#include <torch/nn/modules/container/modulelist.h>

#include <map>
#include <mutex>
#include <string>

#include "meshwright/parallel/parallelize.h"

// After LibTorch, which has a CHECK of its own.
#include <doctest/doctest.h>

namespace once_a_step_test {

using namespace meshwright;

namespace {

constexpr int64_t kLayers = 3;

// Norms of layers train alone.
tiny::Net make() {
  tiny::Net net = tiny::make(kLayers, 3);
  for (auto& item : net->named_parameters())
    item.value().set_requires_grad(item.key().find("layernorm") != std::string::npos);
  return net;
}

std::unique_ptr<ParallelModel> shard(tiny::Net& net, ShardLayout layout, bool chains,
                                     const std::shared_ptr<World>& world) {
  ShardingPolicy policy;
  policy.precision.mp = {DType::float32, DType::float32, DType::float32, true};
  policy.layout = layout;
  policy.prefetch.chains = chains;
  const ModelOutline outline = outline_of(*net);
  return shard_model(net.ptr(), bind_units(*net, outline, tiny::parted_units(outline)), policy,
                     tiny::groups_of(world), world);
}

// Layers whose parameter of that name has memory.
int64_t there(tiny::Net& net, const std::string& name) {
  int64_t out = 0;
  for (auto& item : net->named_parameters())
    if (item.key().ends_with(name)) try {
        (void)item.value().detach().sum();
        ++out;
      } catch (const std::exception&) {  // it is freed
      }
  return out;
}

// Whether all that trains has that value, on this rank, gathered.
bool trained_are(tiny::Net& net, double value) {
  bool out = true;
  for (auto& item : net->named_parameters())
    if (item.value().requires_grad())
      out = out && item.value().detach().eq(value).all().item<bool>();
  return out;
}

std::map<std::string, int64_t> counts(World& world) {
  std::map<std::string, int64_t> out;
  for (const TrafficCounter::Row& row : world.traffic().rows())
    if (row.axis != "control") out[row.op] = row.count;
  return out;
}

}  // namespace

TEST_CASE("a unit once a step is gathered once, kept over all micro-batches and reduced once") {
  for (const ShardLayout layout : {ShardLayout::rows, ShardLayout::flat})
    for (const bool chains : {false, true}) {
      std::mutex mutex;
      run_ranks(2, [&](const std::shared_ptr<World>& world) {
        tiny::Net net = make();
        const std::unique_ptr<ParallelModel> model = shard(net, layout, chains, world);
        for (int step = 0; step < 3; ++step) {
          world->traffic().clear();
          model->begin_step();
          int64_t base_left = 0, kept = 0, kept_after = 0, base_after = 0;
          bool fresh = true;
          for (const bool last : {false, true}) {
            model->begin_micro_batch(last ? GradientSync::reduce : GradientSync::accumulate);
            if (last) kept_after = there(net, "layernorm.weight");
            if (last) base_after = there(net, "self_attn.weight");
            const at::Tensor loss = tiny::loss_of(net, tiny::batch(2, 7));
            base_left = there(net, "self_attn.weight");
            kept = there(net, "layernorm.weight");
            // The shards grow by one a step: what is gathered is never that of the step before.
            fresh = fresh && trained_are(net, 1 + step);
            loss.backward();
          }
          model->end_step();
          const int64_t kept_between = there(net, "layernorm.weight");
          for (const FlatParameterGroup& group : model->update_groups()) group.values.add_(1);
          model->after_optimizer_step();
          const std::map<std::string, int64_t> sent = counts(*world);
          const std::lock_guard lock(mutex);
          CAPTURE(step);
          CAPTURE(chains);
          CAPTURE((layout == ShardLayout::flat));
          CHECK(base_left == 1);  // of the last layer, which stays for its backward
          CHECK(base_after == 0);
          CHECK(kept == 2 * kLayers);
          CHECK(kept_after == 2 * kLayers);
          CHECK(kept_between == 0);
          CHECK(fresh);
          // Of each micro-batch: the root, the last layer once, the others twice.
          CHECK(sent.at("all_gather") == 2 * (1 + 1 + 2 * (kLayers - 1)) + kLayers);
          CHECK(sent.at("reduce_scatter") == kLayers);
        }
        // Outside of steps nothing is kept.
        {
          const c10::NoGradGuard no_grad;
          tiny::loss_of(net, tiny::batch(2, 7));
        }
        const int64_t left = there(net, "layernorm.weight");
        const std::lock_guard lock(mutex);
        CHECK(left == 0);
      });
    }
}

TEST_CASE("a step that ended in an exception leaves units once a step as they were") {
  std::mutex mutex;
  run_ranks(2, [&](const std::shared_ptr<World>& world) {
    tiny::Net net = make();
    const std::unique_ptr<ParallelModel> model = shard(net, ShardLayout::rows, false, world);
    for (const bool breaks : {true, false}) {
      world->traffic().clear();
      model->begin_step();
      model->begin_micro_batch(GradientSync::reduce);
      const at::Tensor loss = tiny::loss_of(net, tiny::batch(2, 7));
      if (breaks) continue;
      loss.backward();
      model->end_step();
    }
    const std::map<std::string, int64_t> sent = counts(*world);
    const int64_t left = there(net, "layernorm.weight");
    const std::lock_guard lock(mutex);
    CHECK(sent.at("all_gather") == 1 + 1 + 2 * (kLayers - 1) + kLayers);
    CHECK(sent.at("reduce_scatter") == kLayers);
    CHECK(left == 0);
  });
}

}  // namespace once_a_step_test
