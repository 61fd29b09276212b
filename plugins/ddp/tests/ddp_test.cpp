#include "plugins/plugin_test.h"

using namespace plugin_test;

TEST_CASE("ddp has its documented options") {
  check_defaults({{"broadcast_buffers", "false"},
                  {"find_unused_parameters", "false"},
                  {"static_graph", "false"},
                  {"bucket_cap_mb", "25"},
                  {"gradient_as_bucket_view", "true"},
                  {"backend", "\"none\""}});
}

TEST_CASE("ddp has no mesh and refuses what it cannot do") {
  MeshPlan plan = make()->plan_mesh(request(8));
  CHECK(!plan.device_mesh);
  CHECK(!plan.moe_mesh);
  CHECK(plan.dp == 8);
  for (const char* size : {"tp_size", "pp_size", "cp_size", "ep_size", "dp_replicate_size"}) {
    std::string key = size;
    CAPTURE(key);
    try {
      make()->plan_mesh(request(8, {{key, int64_t{2}}}));
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::size_not_supported);
      CHECK(error.key() == "distributed." + key);
    }
  }
  check_refused({{"sequence_parallel", true}}, {}, ErrorCode::option_refused,
                "distributed.sequence_parallel");
  check_refused({{"tp_plan", std::string("own")}}, {}, ErrorCode::option_refused,
                "distributed.tp_plan");
  check_refused({{"enable_async_tensor_parallel", true}}, {}, ErrorCode::option_refused,
                "distributed.enable_async_tensor_parallel");
  CHECK(validated({{"activation_checkpointing", std::string("selective")}}).ok());
}

TEST_CASE("ddp plans and trains") { check_trains(); }
