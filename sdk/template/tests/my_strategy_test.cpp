#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
#include <meshwright/plugin.h>
#include <meshwright/strategy.h>

#include <memory>

namespace mw = meshwright;

extern "C" const meshwright_plugin meshwright_plugin_v1;

namespace {

// The strategy as the engine makes it: through the descriptor.
std::shared_ptr<mw::Strategy> make_strategy() {
  const meshwright_strategy& about = meshwright_plugin_v1.strategies[0];
  meshwright_status status{sizeof(meshwright_status), 0, {}};
  auto* strategy = static_cast<mw::Strategy*>(about.create(&status));
  REQUIRE_MESSAGE(strategy != nullptr, status.message);
  return {strategy, about.destroy};
}

mw::MeshRequest request_for(int64_t world_size) {
  const meshwright_strategy& about = meshwright_plugin_v1.strategies[0];
  mw::MeshRequest request;
  request.world_size = world_size;
  request.config.own = mw::Options(mw::make_schema("distributed.my_strategy", about.name, {about.options, about.option_count}));
  return request;
}

}  // namespace

TEST_CASE("eight ranks make eight shards") {
  mw::MeshPlan plan = make_strategy()->plan_mesh(request_for(8));
  CHECK(plan.device_mesh->size("dp_shard") == 8);
  CHECK(plan.dp == 8);
}

TEST_CASE("sizes that do not fit are refused with a setting that works") {
  mw::MeshRequest request = request_for(8);
  request.config.shared.sizes.tp = 3;
  try {
    make_strategy()->plan_mesh(request);
    FAIL("accepted");
  } catch (const mw::Error& error) {
    CHECK(error.code() == mw::ErrorCode::world_not_divisible);
    CHECK(!error.helps().empty());
  }
}

TEST_CASE("copies can be turned off") {
  mw::MeshRequest request = request_for(8);
  request.config.shared.sizes.dp_replicate = 2;
  CHECK(make_strategy()->plan_mesh(request).device_mesh->size("dp_shard") == 4);
  request.config.own.set("copies", std::string("none"));
  CHECK_THROWS_AS(make_strategy()->plan_mesh(request), mw::Error);
}
