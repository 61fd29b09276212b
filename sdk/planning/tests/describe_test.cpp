// Whether a strategy trains follows from what it overrides.
#include <doctest/doctest.h>

#include <memory>
#include <stdexcept>

#include "meshwright/plugin_main.h"
#include "meshwright/sharded_strategy.h"

using namespace meshwright;

namespace describe_test {
namespace {

struct Plans : Strategy {
  MeshPlan plan_mesh(const MeshRequest&) const override { return {}; }
};
struct Inherits : Plans {};
struct Runs : Plans {
  std::unique_ptr<ParallelModel> parallelize(ParallelizeRequest&) override {
    throw std::logic_error("not called");
  }
};
struct InheritsRuns : Runs {};
struct Cuts : Plans {
  ShardingPlan plan_sharding(const ShardingRequest&) const override { return {}; }
};
class Private : public Plans {
  ShardingPlan plan_sharding(const ShardingRequest&) const override { return {}; }
};
struct Overloaded : Runs {
  using Runs::parallelize;
  void parallelize(int) {}
};
struct Sharded : ShardedStrategy {};

constexpr uint64_t kPlans = MESHWRIGHT_CAN_PLAN,
                   kTrains = MESHWRIGHT_CAN_PLAN | MESHWRIGHT_CAN_PARALLELIZE;

template <class S>
uint64_t can(uint64_t said = 0) {
  return describe<S>({.name = "s", .capabilities = said}).capabilities;
}

}  // namespace

TEST_CASE("a strategy that overrides how it is sharded or run trains, and the others plan") {
  CHECK(can<Plans>() == kPlans);
  CHECK(can<Inherits>() == kPlans);
  CHECK(can<Runs>() == kTrains);
  CHECK(can<InheritsRuns>() == kTrains);
  CHECK(can<Cuts>() == kTrains);
  CHECK(can<Private>() == kTrains);
  CHECK(can<Overloaded>() == kTrains);
  CHECK(can<Sharded>() == kTrains);
}

TEST_CASE("what a description says of itself counts too") {
  CHECK(can<Plans>(MESHWRIGHT_CAN_PLAN) == kPlans);
  CHECK(can<Plans>(MESHWRIGHT_CAN_PARALLELIZE) == kTrains);
  CHECK(can<Runs>(kTrains) == kTrains);
}

}  // namespace describe_test
