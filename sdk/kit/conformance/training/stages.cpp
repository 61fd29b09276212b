#include "sdk/kit/conformance/training/stages.h"

namespace meshwright::conformance {

PipelinePlan split_stages(torch::nn::Module& module, ModelOutline& outline,
                          const SharedOptions& shared, const MeshPlan& mesh, int64_t rank) {
  PipelinePlan plan = plan_pipeline(outline, shared.sizes.pp, shared.pipeline);
  const int64_t me = mesh.device_mesh->coordinate(rank, "pp");
  outline = stage_outline(outline, plan, me);
  std::vector<std::string> kept;
  for (const PipelineStage& stage : plan.stages)
    if (stage.rank == me) kept.insert(kept.end(), stage.modules.begin(), stage.modules.end());
  keep_modules(module, kept);
  return plan;
}

std::unique_ptr<PipelineRunner> open_pipeline(World& world, const MeshPlan& mesh,
                                              const PipelinePlan& plan, int64_t micro_batches) {
  PipelineSetup setup;
  setup.group = world.group("pp", mesh.device_mesh->group(world.rank(), "pp"));
  setup.run = simulate_pipeline(
      make_actions(PipelineSchedule::one_f_one_b, setup.group->size(), 1, micro_batches));
  setup.stages_of_rank = plan.stages_of_rank;
  for (const PipelineStage& stage : plan.stages) {
    setup.modules.push_back(stage.modules);
    setup.modules.back().push_back(root_of_stage(stage.index));
    setup.needs_input_gradient.push_back(stage.index > 0);
  }
  return std::make_unique<PipelineRunner>(std::move(setup));
}

StagePart part_of(const PipelineStage& stage, const PipelinePlan& plan) {
  return {.first = stage.index == 0,
          .last = stage.index + 1 == std::ssize(plan.stages),
          .begin = stage.first_layer,
          .end = stage.first_layer + stage.layer_count};
}

std::string tied_name(const ModelOutline& whole, const MeshPlan& mesh, const PipelinePlan& plan,
                      int64_t rank) {
  const int64_t me = mesh.device_mesh->coordinate(rank, "pp");
  std::string out;
  for (const ParameterOutline& p : stage_outline(whole, plan, plan.stages.back().rank).parameters)
    if (!p.copy_of.empty() && p.trainable) {
      if (me == plan.stages.front().rank) out = p.copy_of;
      if (me == plan.stages.back().rank) out = p.name;
    }
  return out;
}

void sum_tied(World& world, const MeshPlan& mesh, const PipelinePlan& plan,
              const ParallelModel& model, const std::string& name) {
  const std::vector<int64_t> ranks = mesh.device_mesh->group(world.rank(), "pp");
  const std::shared_ptr<Group> ends =
      world.group("pp", {ranks[static_cast<size_t>(plan.stages.front().rank)],
                         ranks[static_cast<size_t>(plan.stages.back().rank)]});
  for (const ParallelParameter& p : model.parameters())
    if (p.name == name && p.grad.defined()) ends->all_reduce(p.grad, ReduceOp::sum).wait();
}

bool has_last_stage(const World& world, const MeshPlan& mesh, const PipelinePlan& plan) {
  return plan.stages.back().rank == mesh.device_mesh->coordinate(world.rank(), "pp");
}

}  // namespace meshwright::conformance
