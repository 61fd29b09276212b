// The stages of a pipeline as the kit runs them. Not for use outside the kit.
#pragma once

#include <torch/nn/module.h>

#include <memory>

#include "meshwright/nn/stage.h"
#include "meshwright/parallel/parallel.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/pipeline_runner.h"

namespace meshwright::conformance {

// Leaves of the module, and of its outline, what the stages of this rank have.
PipelinePlan split_stages(torch::nn::Module& module, ModelOutline& outline,
                          const SharedOptions& shared, const MeshPlan& mesh, int64_t rank);
// Runs `micro_batches` of a step through them by 1F1B. Collective.
std::unique_ptr<PipelineRunner> open_pipeline(World& world, const MeshPlan& mesh,
                                              const PipelinePlan& plan, int64_t micro_batches);
// What current_stage() is within a stage's forward.
StagePart part_of(const PipelineStage& stage, const PipelinePlan& plan);
// The name under which this rank trains a weight that stages at both ends have, a tied head's; "":
// it has none. `whole`: the outline of all stages.
std::string tied_name(const ModelOutline& whole, const MeshPlan& mesh, const PipelinePlan& plan,
                      int64_t rank);
// Adds up the gradients of both. Collective over the two ranks.
void sum_tied(World& world, const MeshPlan& mesh, const PipelinePlan& plan,
              const ParallelModel& model, const std::string& name);
// Whether this rank has the end of the model.
bool has_last_stage(const World& world, const MeshPlan& mesh, const PipelinePlan& plan);

}  // namespace meshwright::conformance
