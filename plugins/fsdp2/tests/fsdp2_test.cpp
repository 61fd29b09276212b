#include "plugins/plugin_test.h"

using namespace plugin_test;

TEST_CASE("fsdp2 has its documented options") {
  check_defaults({{"reshard_after_forward", "\"none\""},
                  {"offload_policy", "\"none\""},
                  {"offload_pin_memory", "true"},
                  {"defer_fsdp_grad_sync", "true"},
                  {"enable_fsdp2_prefetch", "false"},
                  {"fsdp2_backward_prefetch_depth", "2"},
                  {"fsdp2_forward_prefetch_depth", "1"},
                  {"frozen_sharding", "\"root\""},
                  {"backend", "\"none\""},
                  {"enable_compile", "false"},
                  {"patch_is_packed_sequence", "false"}});
}

TEST_CASE("fsdp2 plans a sharded mesh and hands expert parallelism on") {
  MeshPlan plan =
      make()->plan_mesh(request(8, {{"dp_replicate_size", int64_t{2}}, {"cp_size", int64_t{2}}}));
  CHECK(plan.fsdp_axes == std::vector<std::string>{"dp_replicate", "dp_shard_cp"});
  CHECK(plan.delegate_to.empty());
  MeshPlan experts = make()->plan_mesh(request(8, {{"ep_size", int64_t{4}}}));
  CHECK(experts.delegate_to == "moe_ep");
  CHECK(experts.notices.size() == 1);
}

TEST_CASE("fsdp2 overlaps tensor-parallel collectives only with sequence parallelism") {
  check_refused({{"enable_async_tensor_parallel", true}}, {}, ErrorCode::conflict,
                "distributed.enable_async_tensor_parallel");
  CHECK(validated({{"enable_async_tensor_parallel", true}, {"sequence_parallel", true}}).ok());
}

TEST_CASE("fsdp2 plans and trains") { check_trains(); }
