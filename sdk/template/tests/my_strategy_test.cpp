#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <meshwright/plugin.h>
#include <meshwright/strategy.h>

extern "C" const meshwright_plugin meshwright_plugin_v1;

TEST_CASE("eight ranks make eight shards") {
  using namespace meshwright;
  const meshwright_strategy& about = meshwright_plugin_v1.strategies[0];
  meshwright_status status{};
  auto* strategy = static_cast<Strategy*>(about.create(&status));
  REQUIRE(strategy != nullptr);
  MeshRequest request;
  request.world_size = 8;
  MeshPlan plan = strategy->plan_mesh(request);
  CHECK(plan.device_mesh->size("dp_shard") == 8);
  request.config.shared.sizes.tp = 3;
  CHECK_THROWS_AS(strategy->plan_mesh(request), Error);
  about.destroy(strategy);
}
