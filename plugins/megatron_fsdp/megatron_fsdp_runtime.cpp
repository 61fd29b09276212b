// How megatron_fsdp runs.
#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

#include "flat_policy.h"
#include "meshwright/parallel/fully_sharded.h"
#include "meshwright/parallel/tensor_parallel.h"
#include "meshwright/parallel/unit_rules.h"
#include "meshwright/plugin_runtime.h"

namespace {

using namespace meshwright;

// What a level keeps whole, and how it reduces.
ShardedPolicy run_policy(const ParallelizeRequest& request, const FlatPolicy& flat) {
  const Options& own = request.config.own;
  ShardedPolicy policy = sharded_policy(request);
  policy.layout = ShardLayout::flat;
  // Alone there is nothing to share out, which is level 0.
  int level = policy.shard->size() == 1 ? 0 : flat.level;
  if (level == 0) {
    policy.replicate = policy.shard;
    policy.replicate_axis = policy.shard_axis;
    policy.shard = request.world->group("alone", {request.world->rank()});
  }
  policy.whole_parameters = level <= 2;
  policy.whole_gradients = level <= 1;
  policy.reduce_every_micro_batch = level >= 2;
  policy.overlap_gather = own.get_bool("overlap_param_gather");
  policy.overlap_reduction = own.get_bool("overlap_grad_reduce");
  if (flat.preserve_fp32_weights) policy.main_weights = DType::float32;
  if (flat.grad_reduce_in_fp32) policy.main_gradients = policy.mp.reduce = DType::float32;
  using Average = ShardedPolicy::Average;
  policy.average = own.get_bool("calculate_per_token_loss") ? Average::with_clipping
                   : own.get_bool("average_in_collective")  ? Average::in_sum
                                                            : Average::before_sum;
  policy.registered = own.get_bool("nccl_ub");
  policy.double_buffer = policy.registered || own.get_bool("fsdp_double_buffer");
  policy.check_nan = own.get_bool("check_for_nan_in_grad");
  policy.check_own_nan = own.get_bool("report_nan_in_param_grad");
  policy.options = own.schema().table;
  return policy;
}

// Memory for the whole model, as a model has it that is built before it is sharded; each unit gives
// its part back when it is sharded.
void materialise(torch::nn::Module& model, at::Device device) {
  for (at::Tensor& p : model.parameters())
    if (p.is_meta()) {
      at::Tensor real = at::empty(p.sizes(), p.options().device(device).requires_grad(false));
      p.unsafeGetTensorImpl()->shallow_copy_from(real.getIntrusivePtr());
    }
}

std::unique_ptr<ParallelModel> run(Strategy&, ParallelizeRequest& request) {
  reject_unsupported_sizes(request, /*applies_tensor_parallel=*/true);
  check_backend(request);
  FlatPolicy flat = flat_policy(request.config);
  std::shared_ptr<TensorParallel> tensor_parallel = apply_tensor_parallel(request);
  apply_activation_checkpointing(request, /*whole_layers=*/true);
  ShardedPolicy policy = run_policy(request, flat);
  policy.tensor_parallel = tensor_parallel;
  if (policy.registered && !request.world->everyone()->has_native_reduce_scatter())
    request.world->notice(policy.options +
                          ".nccl_ub = true has no effect: the ranks of this job talk through gloo");
  if (find_unit_rule(request.outline.architecture))
    request.world->notice(
        "models of class " + request.outline.architecture +
        " have a unit rule, which megatron_fsdp does not apply: its flat buffers follow " +
        policy.options +
        ".megatron_fsdp_unit_modules, and all parameters compute in "
        "distributed.mp_policy.param_dtype");
  if (!request.config.own.get_bool("init_fsdp_with_meta_device"))
    materialise(*request.model, request.world->device());
  std::vector<UnitSpec> units =
      flat_unit_specs(*request.model, request.outline, flat, /*reshard=*/!policy.whole_parameters);
  return shard_model(request.model, std::move(units), std::move(policy), request.world);
}

}  // namespace

MESHWRIGHT_PLUGIN_RUNS_WITH(run)
