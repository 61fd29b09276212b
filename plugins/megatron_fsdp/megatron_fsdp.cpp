// megatron_fsdp: a unit's parameters packed into one flat buffer, cut evenly over the ranks; ZeRO
// levels 0 to 3.
#include <array>

#include "meshwright/plugin_main.h"
#include "meshwright/typed_options.h"

namespace {

using namespace meshwright;

struct Own {
  std::vector<std::string> megatron_fsdp_unit_modules;
  int64_t zero_dp_strategy;
  bool init_fsdp_with_meta_device, grad_reduce_in_fp32, preserve_fp32_weights, overlap_grad_reduce,
      overlap_param_gather, check_for_nan_in_grad, report_nan_in_param_grad, average_in_collective,
      disable_bucketing, calculate_per_token_loss, keep_fp8_transpose_cache, nccl_ub,
      fsdp_double_buffer;
  std::string backend;
};
constexpr auto kOptions = typed_options<Own>(
    field(&Own::megatron_fsdp_unit_modules,
          with_aliases(
              with_flags(option("megatron_fsdp_unit_modules", MESHWRIGHT_STRING_LIST, nullptr,
                                "Module classes that become units. Not set: the layers."),
                         MESHWRIGHT_OPTIONAL),
              "nvfsdp_unit_modules")),
    field(&Own::zero_dp_strategy,
          with_aliases(int_option("zero_dp_strategy", "3", 0, 3,
                                  "What is sharded over dp: 0 nothing, 1 optimizer state, 2 also "
                                  "gradients, 3 also parameters."),
                       "data_parallel_sharding_strategy{no_shard=0,optim=1,params=1,optim_grads=2,"
                       "grads_params=2,optim_grads_params=3}")),
    field(&Own::init_fsdp_with_meta_device,
          with_aliases(bool_option("init_fsdp_with_meta_device", false,
                                   "Allocate the model unit by unit. Needs level 1 or above."),
                       "init_nvfsdp_with_meta_device")),
    field(
        &Own::grad_reduce_in_fp32,
        bool_option("grad_reduce_in_fp32", false,
                    "Keep and reduce main gradients in float32; false: in the parameters' dtype.")),
    field(
        &Own::preserve_fp32_weights,
        bool_option("preserve_fp32_weights", false,
                    "Keep float32 main weights for the optimizer; false: the model's own dtype.")),
    field(&Own::overlap_grad_reduce,
          bool_option(
              "overlap_grad_reduce", true,
              "Reduce gradients beside the backward computation. Always on at levels 2 and 3.")),
    field(&Own::overlap_param_gather,
          bool_option("overlap_param_gather", true,
                      "Gather coming units beside the computation. Always on at level 3.")),
    field(
        &Own::check_for_nan_in_grad,
        bool_option("check_for_nan_in_grad", true,
                    "Look for NaN and infinity in the reduced gradients and name the parameter.")),
    field(&Own::report_nan_in_param_grad,
          bool_option("report_nan_in_param_grad", false,
                      "Look for NaN and infinity in each gradient before the reduction (slow).")),
    field(&Own::average_in_collective,
          bool_option(
              "average_in_collective", false,
              "Average inside the collective; false: divide by the group's size before a sum.")),
    field(&Own::disable_bucketing,
          bool_option("disable_bucketing", false,
                      "Reduce parameters outside units one by one instead of in buckets.")),
    field(&Own::calculate_per_token_loss,
          bool_option("calculate_per_token_loss", false,
                      "Sum gradients instead of averaging them; the loss is divided by tokens.")),
    field(&Own::keep_fp8_transpose_cache,
          with_aliases(bool_option("keep_fp8_transpose_cache", false,
                                   "Keep transposes of fp8 parameters (level 3)."),
                       "keep_fp8_transpose_cache_when_using_custom_fsdp")),
    field(&Own::nccl_ub,
          bool_option("nccl_ub", false,
                      "Register communication buffers with NCCL. Turns fsdp_double_buffer on.")),
    field(&Own::fsdp_double_buffer,
          bool_option("fsdp_double_buffer", false,
                      "Two rotating persistent buffers for gathering and reducing.")),
    field(&Own::backend, backend_option()));

class MegatronFsdp final : public Strategy {
 public:
  void validate(const StrategyConfig& config, Diagnostics& diagnostics) const override {
    auto refuse = [&](const char* key, const std::string& why, const char* instead) {
      diagnostics.add(option_error(config.distributed(), key, ErrorCode::option_refused,
                                   "megatron_fsdp " + why, instead)
                          .help("set distributed.strategy = \"fsdp2\""));
    };
    if (config.sequence_parallel())
      refuse("sequence_parallel", "has no sequence parallelism", "false");
    if (config.enable_async_tensor_parallel())
      refuse("enable_async_tensor_parallel", "has no sequence parallelism to overlap", "false");
    if (config.tp_plan().kind != TpPlanChoice::Kind::automatic)
      refuse("tp_plan", "takes no custom tensor-parallel plan", "\"none\"");

    const Options& values = config.own();
    const Own own = kOptions.read(values);
    const int64_t level = own.zero_dp_strategy;
    const std::string table = values.schema().table + ".",
                      level_key = kOptions.key(values, &Own::zero_dp_strategy);
    if (own.init_fsdp_with_meta_device && level == 0)
      diagnostics.add(
          option_error(values, "init_fsdp_with_meta_device", ErrorCode::conflict,
                       "init_fsdp_with_meta_device needs sharded state, but zero_dp_strategy is 0",
                       "false")
              .about(level_key)
              .help("set " + level_key + " = 3"));
    if (own.keep_fp8_transpose_cache)
      diagnostics.add(option_error(
          values, "keep_fp8_transpose_cache", ErrorCode::option_refused,
          "keep_fp8_transpose_cache has nothing to keep: no model here has fp8 parameters",
          "false"));
    auto tell = [&](bool when, const std::string& name, const std::string& what,
                    const std::string& other = "zero_dp_strategy") {
      if (when) diagnostics.notice(name + what, {table + name, table + other});
    };
    const std::string at_level = "it is always on at level " + std::to_string(level);
    tell(own.nccl_ub && !own.fsdp_double_buffer, "nccl_ub", " = true turns fsdp_double_buffer on",
         "fsdp_double_buffer");
    tell(level >= 2 && !own.overlap_grad_reduce, "overlap_grad_reduce",
         " = false has no effect: " + at_level);
    tell(level == 3 && !own.overlap_param_gather, "overlap_param_gather",
         " = false has no effect: " + at_level);
    tell(own.average_in_collective && own.calculate_per_token_loss, "average_in_collective",
         " = true has no effect with calculate_per_token_loss = true, which sums",
         "calculate_per_token_loss");
    tell(level != 3, "zero_dp_strategy",
         " = " + std::to_string(level) + ": parameters are not sharded");
  }

  MeshPlan plan_mesh(const MeshRequest& request) const override {
    constexpr std::array<std::string_view, 3> kRefused = {"pp", "ep", "dp_replicate"};
    refuse_sizes(request, "megatron_fsdp", kRefused);
    const ParallelSizes& sizes = request.config.sizes();
    MeshPlan plan;
    plan.dp = resolve_dp_size(request);
    plan.device_mesh.emplace(
        std::vector<MeshAxis>{{"dp", plan.dp}, {"cp", sizes.cp}, {"tp", sizes.tp}}, request.ranks);
    if (sizes.cp > 1) plan.device_mesh->flatten("dp_cp", {"dp", "cp"});
    plan.fsdp_axes = {sizes.cp > 1 ? "dp_cp" : "dp"};
    return plan;
  }

  ShardingPlan plan_sharding(const ShardingRequest& request) const override {
    const Options& table = request.config.own();
    const Own own = kOptions.read(table);
    ShardingPlan plan = flat_plan(request, sharding_policy(table, own));
    plan.allocate_before_sharding = !own.init_fsdp_with_meta_device;
    const Workload& work = request.workload;
    if (!own.grad_reduce_in_fp32 && work.accumulation > 1 &&
        dtype_size(work.storage) < dtype_size(DType::float32))
      plan.notices.push_back(
          "gradients of " + std::to_string(work.accumulation) + " micro-batches are added up in " +
          std::string(dtype_name(work.storage)) + ", rounded after each; " +
          kOptions.key(table, &Own::grad_reduce_in_fp32) + " = true adds them up in float32");
    return plan;
  }

 private:
  static ShardingPolicy sharding_policy(const Options& table, const Own& own) {
    using Average = ReductionPolicy::Average;
    ShardingPolicy policy;
    policy.level = static_cast<int>(own.zero_dp_strategy);
    policy.overlap_gather = own.overlap_param_gather;
    policy.reduction.overlap = own.overlap_grad_reduce;
    policy.reduction.average = own.calculate_per_token_loss ? Average::with_clipping
                               : own.average_in_collective  ? Average::in_sum
                                                            : Average::before_sum;
    if (own.preserve_fp32_weights) policy.precision.main_weights = DType::float32;
    if (own.grad_reduce_in_fp32) policy.precision.main_gradients = DType::float32;
    policy.buffers.registered = own.nccl_ub;
    policy.buffers.rotating = policy.buffers.registered || own.fsdp_double_buffer;
    policy.checks.reduced = own.check_for_nan_in_grad;
    policy.checks.own = own.report_nan_in_param_grad;
    policy.flat.unit_classes = own.megatron_fsdp_unit_modules;
    if (own.disable_bucketing) policy.flat.bucket_elements = 1;
    policy.options = {{"level", kOptions.key(table, &Own::zero_dp_strategy)},
                      {"flat.unit_classes", kOptions.key(table, &Own::megatron_fsdp_unit_modules)},
                      {"buffers.registered", kOptions.key(table, &Own::nccl_ub)},
                      {"checks.reduced", kOptions.key(table, &Own::check_for_nan_in_grad)},
                      {"checks.own", kOptions.key(table, &Own::report_nan_in_param_grad)}};
    return policy;
  }
};

constexpr std::array kStrategies = {
    describe<MegatronFsdp>({.name = "megatron_fsdp",
                            .aliases = "megatron-fsdp|mfsdp",
                            .summary = "ZeRO levels 0 to 3 on flat buffers",
                            .options = kOptions.declared}),
};

}  // namespace

MESHWRIGHT_PLUGIN("megatron_fsdp", MESHWRIGHT_VERSION, "The Meshwright authors", "Apache-2.0",
                  "Fully sharded data parallel on flat buffers", kStrategies)
