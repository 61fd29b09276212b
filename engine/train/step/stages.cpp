#include "engine/train/step/stages.h"

#include <ATen/ops/tensor.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "meshwright/nn/stage.h"
#include "meshwright/parallel/scalar_type.h"
#include "sdk/base/context_plan.h"
#include "sdk/base/context_split.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/read_by_host.h"
#include "sdk/base/words.h"

namespace meshwright::train {

using at::Tensor;

namespace {

// What really trains, which a plan made from files cannot know.
PipelinePlan with_gradients(PipelinePlan plan, const torch::nn::Module& model) {
  std::vector<std::string> trainable;
  for (const auto& item : model.named_parameters())
    if (item.value().requires_grad()) trainable.push_back(item.key());
  mark_gradients(plan, trainable);
  return plan;
}

// Rows, tokens and width of a rank's hidden states, by the length of samples.
std::function<std::vector<int64_t>(int64_t)> hidden_sizes(const plan::JobPlan& plan,
                                                          const StrategyConfig& config) {
  if (!plan.outline) return [](int64_t) { return std::vector<int64_t>(); };
  return [cp = config.shared().sizes.cp, balance = context_balance(config.shared().context),
          tp = plan::cuts_sequence(plan.tp) ? config.shared().sizes.tp : 1,
          rows = config.shared().pipeline.microbatch_size,
          width = plan.outline->hidden_size](int64_t length) {
    if (length <= 0) return std::vector<int64_t>();
    const int64_t tokens = cp > 1 ? ContextSplit(length, cp, balance).rows() : length;
    return std::vector<int64_t>{rows, tokens / tp, width};
  };
}

// The experts' policy replaces the shared one where there is an expert mesh.
DType output_of(const plan::JobPlan& plan, const StrategyConfig& config) {
  const std::optional<MixedPrecision>& experts = config.shared().moe.mp_policy;
  return plan.mesh.moe_mesh && experts ? experts->output : config.shared().mp.output;
}

}  // namespace

Stages::Stages(const plan::JobPlan& plan, const StrategyConfig& config, const ModelOutline& whole,
               torch::nn::Module& model, World& world)
    : plan_(with_gradients(
          plan.pipeline ? *plan.pipeline
                        : plan_pipeline(whole, config.shared().sizes.pp, config.shared().pipeline),
          model)),
      sizes_of_(hidden_sizes(plan, config)),
      sizes_(sizes_of_(plan.workload.seq_len)),
      largest_(sizes_),
      type_(scalar_type(config.shared().pipeline.dtype.value_or(output_of(plan, config)))),
      model_name_(whole.architecture),
      mesh_(*plan.mesh.device_mesh),
      world_(world),
      runs_(pipeline_runs(config.shared().pipeline, plan.workload)),
      micro_batches_(pipeline_micro_batches(config.shared().pipeline)) {
  if (!plan.pipeline)
    for (const std::string& warning : plan_.warnings) world.notice(warning);
  const int64_t me = mesh_.coordinate(world.rank(), "pp");
  run_ = simulate_pipeline(plan_actions(plan_, config.shared().pipeline, micro_batches_));
  outline_ = stage_outline(whole, plan_, me);
  const ModelOutline last = stage_outline(whole, plan_, last_rank());
  for (const ParameterOutline& p : last.parameters)
    if (!p.copy_of.empty() && p.trainable && me == plan_.stages.front().rank) tied_ = p.copy_of;
  for (const ParameterOutline& p : outline_.parameters)
    if (!p.copy_of.empty() && p.trainable) tied_ = p.name;
  std::vector<std::string> kept;
  for (const PipelineStage& stage : plan_.stages)
    if (stage.rank == me) kept.insert(kept.end(), stage.modules.begin(), stage.modules.end());
  keep_modules(model, kept);
}

std::string Stages::describe() const {
  return schedule_text(plan_) + ", " +
         text::counted(static_cast<int64_t>(plan_.stages.size()), "stage") + ", " +
         text::counted(micro_batches_, "micro-batch", "es") + " a run, idle " +
         std::to_string(std::lround(100 * run_.bubble)) + "% of it" +
         (runs_ > 1 ? ", " + text::counted(runs_, "run") + " a step" : "");
}

std::string Stages::told_stage(const std::string& parameter) const {
  return " (of stage " + std::to_string(stage_of(plan_, parameter)) + ")";
}

const std::shared_ptr<Group>& Stages::group() {
  if (!group_) group_ = world_.group("pp", mesh_.group(world_.rank(), "pp"));
  return group_;
}

std::shared_ptr<Group> Stages::ends() {
  const std::vector<int64_t> ranks = mesh_.group(world_.rank(), "pp");
  return world_.group("pp", {ranks[static_cast<size_t>(plan_.stages.front().rank)],
                             ranks[static_cast<size_t>(last_rank())]});
}

void Stages::check_tied(const ParallelModel& model) {
  for (const ParallelParameter& p : model.parameters()) {
    if (tied_.empty() || p.name != tied_) continue;
    const double region = static_cast<double>(std::hash<std::string>()(to_text(p.region)) >> 12);
    const Tensor most = at::tensor({region, -region}, at::kDouble).to(world_.device());
    const std::shared_ptr<Group> both = ends();
    both->all_reduce(most, ReduceOp::max, /*control=*/true).wait();
    const Tensor found = detail::read_by_host(*both, most);
    if (found[0].item<double>() == -found[1].item<double>()) continue;
    throw Error(
        ErrorCode::bad_pipeline,
        "the embedding and the head share a weight, but their ranks hold different parts of "
        "it: " +
            to_text(p.region) + " of " + p.name + " here")
        .key("distributed.pipeline.pp_schedule")
        .help("set distributed.pipeline.pp_schedule = \"ZBVZeroBubble\": both are on one rank");
  }
}

void Stages::sum_tied_gradients(const ParallelModel& model) {
  for (const ParallelParameter& p : model.parameters()) {
    if (tied_.empty() || p.name != tied_ || !p.grad.defined()) continue;
    // Offloaded gradients lie elsewhere than groups reduce. Both ways are in the order of the
    // current stream, for which the host waits before it reads them.
    const Tensor sum = p.grad.to(world_.device(), p.grad.scalar_type(), /*non_blocking=*/true);
    ends()->all_reduce(sum, ReduceOp::sum).wait();
    if (!sum.is_same(p.grad)) p.grad.copy_(sum, /*non_blocking=*/true);
  }
}

PipelineSetup Stages::setup(PipelineRun run, std::vector<int64_t> sizes) {
  PipelineSetup out;
  out.group = group();
  out.history = history_;
  out.run = std::move(run);
  out.stages_of_rank = plan_.stages_of_rank;
  out.message.sizes = std::move(sizes);
  out.message.type = type_;
  out.message.device = world_.device();
  for (const PipelineStage& stage : plan_.stages) {
    out.modules.push_back(stage.modules);
    out.modules.back().push_back(root_of_stage(stage.index));
    out.needs_input_gradient.push_back(stage.sends_gradient);
  }
  out.trace = &world_.trace();
  return out;
}

// Hidden states cross in the dtype of messages; units take their inputs in their own.
PipelineRunner::Forward Stages::within_stage(int64_t first_micro, const Forward& forward) const {
  return [this, first_micro, &forward](const PipelineAction& action, const Tensor& hidden) {
    const PipelineStage& stage = plan_.stages[static_cast<size_t>(action.stage)];
    StageScope scope({.first = action.stage == 0,
                      .last = is_last(action.stage),
                      .begin = stage.first_layer,
                      .end = stage.first_layer + stage.layer_count});
    Tensor out = forward(action.stage, first_micro + action.micro_batch, hidden);
    if (!scope.asked())
      throw Error(ErrorCode::bad_module,
                  model_name_ +
                      " does not compute stage by stage: its forward did not ask "
                      "current_stage(), so it would run all layers on every rank")
          .key("distributed.pp_size")
          .help("see meshwright/nn/stage.h for what a model of stages does")
          .help("set distributed.pp_size = 1");
    return is_last(action.stage) ? out : out.to(type_);
  };
}

void Stages::set_length(int64_t length) {
  if (!largest_.empty()) sizes_ = sizes_of_(length);
}

void Stages::train(ParallelModel& model, int64_t run, const Forward& forward,
                   const BeforeBackward& before) {
  if (!runner_) runner_ = std::make_unique<PipelineRunner>(setup(run_, largest_));
  if (!largest_.empty()) runner_->resize(sizes_);
  const int64_t first = run * micro_batches_;
  runner_->run(
      model, within_stage(first, forward),
      [&](const PipelineAction& action) { before(first + action.micro_batch); },
      /*reduce=*/run + 1 == runs_);
}

void Stages::evaluate(ParallelModel& model, int64_t micro_batches, const Forward& forward) {
  PipelineRun run = simulate_pipeline(make_forwards(plan_.stages_of_rank, micro_batches));
  // Nothing stays in flight: so many on their way let every rank work.
  for (int64_t& slot : run.slots)
    slot = std::min(slot, static_cast<int64_t>(plan_.stages_of_rank.size()));
  // Samples may be longer or shorter than those of training, which the first hidden states tell.
  PipelineRunner evaluator(setup(std::move(run), {}));
  evaluator.run_forwards(model, within_stage(0, forward));
}

Tensor Stages::forward(ParallelModel& model, std::vector<int64_t> hidden, const Forward& forward) {
  PipelineRunner once(
      setup(simulate_pipeline(make_forwards(plan_.stages_of_rank, 1)), std::move(hidden)));
  Tensor out;
  const Forward keep = [&](int64_t stage, int64_t micro, const Tensor& input) {
    Tensor result = forward(stage, micro, input);
    if (is_last(stage)) out = result;
    return result;
  };
  once.run_forwards(model, within_stage(0, keep));
  return out;
}

}  // namespace meshwright::train
