// megatron_fsdp: a unit's parameters packed into one flat buffer, cut evenly over the ranks; ZeRO
// levels 0 to 3.
#include <array>

#include "flat_policy.h"
#include "meshwright/plugin_main.h"

namespace {

using namespace meshwright;

constexpr meshwright_option level() {
  meshwright_option o = int_option("zero_dp_strategy", "3", 0,
                                   "What is sharded over dp: 0 nothing, 1 optimizer state, 2 also "
                                   "gradients, 3 also parameters.");
  o.max = 3;
  o.flags &= ~static_cast<uint32_t>(MESHWRIGHT_NO_MAX);
  return with_aliases(o,
                      "data_parallel_sharding_strategy{no_shard=0,optim=1,params=1,optim_grads=2,"
                      "grads_params=2,optim_grads_params=3}");
}

constexpr std::array kOptions = {
    with_aliases(with_flags(option("megatron_fsdp_unit_modules", MESHWRIGHT_STRING_LIST, nullptr,
                                   "Class names of the modules that become units. Not set: the "
                                   "repeated layers of the model."),
                            MESHWRIGHT_OPTIONAL),
                 "nvfsdp_unit_modules"),
    level(),
    with_aliases(bool_option("init_fsdp_with_meta_device", false,
                             "Build the model without memory and materialise it unit by unit. "
                             "Needs level 1 or above."),
                 "init_nvfsdp_with_meta_device"),
    bool_option("grad_reduce_in_fp32", false,
                "Keep and reduce main gradients in float32; false: in the parameters' dtype."),
    bool_option(
        "preserve_fp32_weights", false,
        "Keep float32 main weights for the optimizer; false: optimize in the model's dtype."),
    bool_option("overlap_grad_reduce", true,
                "Reduce gradients beside the backward computation. Always on at levels 2 and 3."),
    bool_option("overlap_param_gather", true,
                "Gather coming units beside the computation. Always on at level 3."),
    bool_option(
        "check_for_nan_in_grad", true,
        "Look for NaN and infinite values in the reduced gradients and name the parameter."),
    bool_option("report_nan_in_param_grad", false,
                "Look for NaN and infinite values in each parameter's gradient before the "
                "reduction (slow)."),
    bool_option("average_in_collective", false,
                "Average inside the collective; false: divide by the group's size before a sum."),
    bool_option("disable_bucketing", false,
                "Reduce parameters outside units one by one instead of in buckets."),
    bool_option("calculate_per_token_loss", false,
                "Sum gradients instead of averaging them; the loss is divided by tokens."),
    with_aliases(bool_option("keep_fp8_transpose_cache", false,
                             "Keep transposes of fp8 parameters (level 3)."),
                 "keep_fp8_transpose_cache_when_using_custom_fsdp"),
    bool_option("nccl_ub", false,
                "Register communication buffers with NCCL. Turns fsdp_double_buffer on."),
    bool_option("fsdp_double_buffer", false,
                "Two rotating persistent buffers for gathering and reducing."),
    with_flags(choice_option("backend", nullptr, "nccl|gloo",
                             "Back end of the mesh's groups. Not set: dist_env.backend."),
               MESHWRIGHT_OPTIONAL),
};

class MegatronFsdp final : public Strategy {
 public:
  void validate(const StrategyConfig& config, Diagnostics& diagnostics) const override {
    const SharedOptions& shared = config.shared;
    auto refuse = [&](const char* key, const std::string& why, const std::string& instead) {
      std::string name = std::string("distributed.") + key;
      diagnostics.add(Error(ErrorCode::option_refused, "megatron_fsdp " + why)
                          .key(name)
                          .at(config.shared_values.origin(key))
                          .help("set " + name + " = " + instead)
                          .help("set distributed.strategy = \"fsdp2\""));
    };
    if (shared.sequence_parallel)
      refuse("sequence_parallel", "has no sequence parallelism", "false");
    if (shared.enable_async_tensor_parallel)
      refuse("enable_async_tensor_parallel", "has no sequence parallelism to overlap", "false");
    if (shared.tp_plan.kind != TpPlanChoice::Kind::automatic)
      refuse("tp_plan", "takes no custom tensor-parallel plan", "\"none\"");

    const Options& own = config.own;
    int64_t level = own.get_int("zero_dp_strategy");
    auto table = own.schema().table + ".";
    if (own.get_bool("init_fsdp_with_meta_device") && level == 0)
      diagnostics.add(
          Error(ErrorCode::conflict,
                "init_fsdp_with_meta_device needs sharded state, but zero_dp_strategy is 0")
              .key(table + "init_fsdp_with_meta_device")
              .at(own.origin("init_fsdp_with_meta_device"))
              .help("set " + table + "zero_dp_strategy = 3")
              .help("set " + table + "init_fsdp_with_meta_device = false"));
    if (own.get_bool("keep_fp8_transpose_cache"))
      diagnostics.add(
          Error(ErrorCode::option_refused,
                "keep_fp8_transpose_cache has nothing to keep: no model here has fp8 parameters")
              .key(table + "keep_fp8_transpose_cache")
              .at(own.origin("keep_fp8_transpose_cache"))
              .help("set " + table + "keep_fp8_transpose_cache = false"));
    if (own.get_bool("nccl_ub") && !own.get_bool("fsdp_double_buffer"))
      diagnostics.notice("nccl_ub = true turns fsdp_double_buffer on");
    if (level >= 2 && !own.get_bool("overlap_grad_reduce"))
      diagnostics.notice("overlap_grad_reduce = false has no effect: it is always on at level " +
                         std::to_string(level));
    if (level == 3 && !own.get_bool("overlap_param_gather"))
      diagnostics.notice("overlap_param_gather = false has no effect: it is always on at level 3");
    if (own.get_bool("average_in_collective") && own.get_bool("calculate_per_token_loss"))
      diagnostics.notice(
          "average_in_collective = true has no effect with calculate_per_token_loss = true, which "
          "sums");
    if (level != 3)
      diagnostics.notice("zero_dp_strategy = " + std::to_string(level) +
                         ": parameters are not sharded");
  }

  MeshPlan plan_mesh(const MeshRequest& request) const override {
    constexpr std::array<std::string_view, 3> kRefused = {"pp", "ep", "dp_replicate"};
    refuse_sizes(request, "megatron_fsdp", kRefused);
    const ParallelSizes& sizes = request.config.shared.sizes;
    MeshPlan plan;
    plan.dp = resolve_dp_size(request);
    plan.device_mesh.emplace(
        std::vector<MeshAxis>{{"dp", plan.dp}, {"cp", sizes.cp}, {"tp", sizes.tp}}, request.ranks);
    if (sizes.cp > 1) plan.device_mesh->flatten("dp_cp", {"dp", "cp"});
    plan.fsdp_axes = {sizes.cp > 1 ? "dp_cp" : "dp"};
    return plan;
  }

  Footprint footprint(const FootprintRequest& request) const override {
    return flat_footprint(request, flat_policy(request.config));
  }
};

constexpr std::array kStrategies = {
    describe<MegatronFsdp>({.name = "megatron_fsdp",
                            .aliases = "megatron-fsdp|mfsdp",
                            .summary = "ZeRO levels 0 to 3 on flat buffers",
                            .options = kOptions,
                            .capabilities = MESHWRIGHT_CAN_PLAN | MESHWRIGHT_CAN_PARALLELIZE}),
};

}  // namespace

MESHWRIGHT_PLUGIN("megatron_fsdp", MESHWRIGHT_VERSION, "The Meshwright authors", "Apache-2.0",
                  "Fully sharded data parallel on flat buffers", kStrategies)
