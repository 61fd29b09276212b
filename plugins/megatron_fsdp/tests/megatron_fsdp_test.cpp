#include "plugins/plugin_test.h"

using namespace plugin_test;

TEST_CASE("megatron_fsdp has its documented options") {
  check_defaults({{"megatron_fsdp_unit_modules", "\"none\""},
                  {"zero_dp_strategy", "3"},
                  {"init_fsdp_with_meta_device", "false"},
                  {"grad_reduce_in_fp32", "false"},
                  {"preserve_fp32_weights", "false"},
                  {"overlap_grad_reduce", "true"},
                  {"overlap_param_gather", "true"},
                  {"check_for_nan_in_grad", "true"},
                  {"report_nan_in_param_grad", "false"},
                  {"average_in_collective", "false"},
                  {"disable_bucketing", "false"},
                  {"calculate_per_token_loss", "false"},
                  {"keep_fp8_transpose_cache", "false"},
                  {"nccl_ub", "false"},
                  {"fsdp_double_buffer", "false"},
                  {"backend", "\"none\""}});
  CHECK_THROWS_AS(request(8, {}, {{"zero_dp_strategy", int64_t{4}}}), Error);
}

TEST_CASE("megatron_fsdp has axes dp, cp and tp, and dp_cp only with context parallelism") {
  MeshPlan plan = make()->plan_mesh(request(8, {{"tp_size", int64_t{2}}}));
  CHECK(plan.device_mesh->axes().size() == 3);
  CHECK(plan.device_mesh->flattened().empty());
  CHECK(plan.fsdp_axes == std::vector<std::string>{"dp"});
  MeshPlan context = make()->plan_mesh(request(8, {{"cp_size", int64_t{2}}}));
  CHECK(context.device_mesh->size("dp_cp") == 8);
  CHECK(context.fsdp_axes == std::vector<std::string>{"dp_cp"});
  for (const char* size : {"pp_size", "ep_size", "dp_replicate_size"})
    CHECK_THROWS_AS(make()->plan_mesh(request(8, {{size, int64_t{2}}})), Error);
}

TEST_CASE("megatron_fsdp checks its options against each other") {
  const std::string table = "distributed.megatron_fsdp.";
  check_refused({{"sequence_parallel", true}}, {}, ErrorCode::option_refused,
                "distributed.sequence_parallel");
  check_refused({{"tp_plan", std::string("own")}}, {}, ErrorCode::option_refused,
                "distributed.tp_plan");
  check_refused({}, {{"init_fsdp_with_meta_device", true}, {"zero_dp_strategy", int64_t{0}}},
                ErrorCode::conflict, table + "init_fsdp_with_meta_device");
  check_refused({}, {{"keep_fp8_transpose_cache", true}}, ErrorCode::option_refused,
                table + "keep_fp8_transpose_cache");
  CHECK(validated({}, {{"nccl_ub", true}}).notices().size() == 1);
  CHECK(validated({}, {{"overlap_grad_reduce", false}}).notices().size() == 1);
  CHECK(validated({}, {{"zero_dp_strategy", int64_t{1}}, {"overlap_grad_reduce", false}})
            .notices()
            .size() == 1);
}

TEST_CASE("megatron_fsdp plans and trains") { check_trains(); }
