// A plan as it is executed: what it says of frozen parameters is what a step sends, and each rank
// holds the regions that it names.
#include "meshwright/footprint.h"
#include "meshwright/parallel/parallelize.h"
#include "meshwright/parallel/testing.h"
#include "tiny_model.h"

#include <map>
#include <stdexcept>

// After LibTorch, which has a CHECK of its own.
#include <doctest/doctest.h>

namespace execute_plan_test {

using namespace meshwright;

namespace {

using Rows = std::map<std::pair<std::string, std::string>, std::pair<int64_t, int64_t>>;

Rows sent(World& world) {
  Rows out;
  for (const TrafficCounter::Row& row : world.traffic().rows())
    if (row.axis != "control") out[{row.axis, row.op}] = {row.count, row.bytes};
  return out;
}

std::string text_of(const Rows& rows) {
  std::string out;
  for (const auto& [key, value] : rows)
    out += key.first + " " + key.second + " " + std::to_string(value.first) + " x, " +
           std::to_string(value.second) + " bytes; ";
  return out;
}

enum class How : uint8_t { replicated, rows, flat, flat_level_2, flat_level_1 };

// Throws what differs: an exception of one rank ends all.
void compare(How how, const std::shared_ptr<World>& world) {
  tiny::Net net = tiny::make(3, 1);
  for (auto& item : net->named_parameters())
    if (item.key().starts_with("layers.1.")) item.value().set_requires_grad(false);
  StrategyConfig config;
  config.shared.mp = {DType::float32, DType::float32, DType::float32, true};
  MeshPlan mesh;
  mesh.dp = world->size();
  if (how == How::rows) {
    mesh = plan_sharded_mesh({world->size(), {}, config});
  } else if (how != How::replicated) {
    mesh.device_mesh.emplace(std::vector<MeshAxis>{{"dp", world->size()}});
    mesh.fsdp_axes = {"dp"};
  }
  const TpPlan tp;
  ModelOutline outline = outline_of(*net);
  ParallelizeRequest request{net.ptr(), outline, mesh, tp, config, world};
  const LiveShardingRequest live(request);
  const int level = how == How::flat_level_2 ? 2 : how == How::flat_level_1 ? 1 : 3;
  const ShardingPlan plan = how == How::replicated ? replicated_plan(live)
                            : how == How::rows     ? fully_sharded_plan(live)
                                                   : flat_plan(live, {.level = level});
  std::unique_ptr<ParallelModel> model = execute_plan(request, plan);
  auto step = [&] {
    model->begin_step();
    model->begin_micro_batch(GradientSync::reduce);
    tiny::loss_of(net, tiny::batch(2, static_cast<uint64_t>(world->rank()))).backward();
    model->end_step();
    model->after_optimizer_step();
  };
  step();
  step();  // the order of the units is known from here on
  const Rows before = sent(*world);
  step();
  Rows now = sent(*world), expected;
  for (const auto& [key, value] : before) {
    now[key].first -= value.first;
    now[key].second -= value.second;
  }
  std::erase_if(now, [](const auto& row) { return row.second.first == 0; });
  for (const WireRow& row : footprint_of(live, plan).wire)
    expected[{row.axis, row.op}] = {row.count, row.bytes};
  if (now != expected)
    throw std::runtime_error("sent " + text_of(now) + "planned " + text_of(expected));
  for (const ParallelParameter& p : model->parameters())
    if (p.name.starts_with("layers.1.") == p.grad.defined())
      throw std::runtime_error(p.name + (p.grad.defined() ? " has" : " has no") + " gradient");
}

}  // namespace

TEST_CASE("a step sends what the plan of a partly frozen model says, under every layout") {
  for (How how : {How::replicated, How::rows, How::flat, How::flat_level_2, How::flat_level_1}) {
    CAPTURE(static_cast<int>(how));
    CHECK_NOTHROW(run_ranks(3, [&](const std::shared_ptr<World>& world) { compare(how, world); }));
  }
}

}  // namespace execute_plan_test
