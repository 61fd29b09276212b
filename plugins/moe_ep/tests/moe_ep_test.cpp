#include "plugins/plugin_test.h"

using namespace plugin_test;

TEST_CASE("moe_ep reads the table of fsdp2") { CHECK(schema().table == "distributed.fsdp2"); }

TEST_CASE("moe_ep folds a stage into ep_shard and ep, tensor parallelism included") {
  MeshPlan plan = make()->plan_mesh(request(
      16, {{"ep_size", int64_t{8}}, {"tp_size", int64_t{2}}, {"dp_replicate_size", int64_t{2}}}));
  REQUIRE(plan.moe_mesh);
  CHECK(plan.moe_mesh->size("ep_shard") == 2);
  CHECK(plan.moe_mesh->group(0, "ep") == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(plan.moe_mesh->group(0, "ep_shard") == std::vector<int64_t>{0, 8});
  CHECK(plan.delegate_to.empty());
  CHECK(!make()->plan_mesh(request(8)).moe_mesh);
  CHECK_THROWS_AS(make()->plan_mesh(request(8, {{"ep_size", int64_t{3}}})), Error);
}

TEST_CASE("moe_ep refuses sequence parallelism where it would matter") {
  check_refused({{"sequence_parallel", true}, {"tp_size", int64_t{2}}}, {},
                ErrorCode::option_refused, "distributed.sequence_parallel");
  CHECK(validated({{"sequence_parallel", true}})
            .ok());  // ignored when there is no tensor parallelism
}

TEST_CASE("moe_ep plans and trains") { check_trains(); }
