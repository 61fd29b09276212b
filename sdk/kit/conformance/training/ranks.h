// Runs ranks as threads and keeps what each of them finds. Not for use outside the kit.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/nn/stage.h"
#include "meshwright/outline.h"
#include "meshwright/parallel/group.h"
#include "meshwright/parallel/parallel.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/pipeline_runner.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/kit/comparison/collect.h"
#include "sdk/kit/comparison/pieces.h"
#include "sdk/kit/conformance/cases.h"
#include "sdk/kit/conformance/training/model.h"

namespace meshwright::conformance {

// Where a case says what it finds.
struct Findings {
  void* context;
  Say fail;
  size_t count = 0;
  void add(const std::string& problem) {
    ++count;
    fail(context, problem.c_str());
  }
  // More of the last problem: layouts end when there are enough problems, not lines.
  void explain(const std::string& line) { fail(context, line.c_str()); }
};

using comparison::collect;
using comparison::RankFound;
using comparison::RunOutcome;

// The first that each rank found: what follows is mostly its consequence. `place`: behind what the
// first of them found.
void tell(const RunOutcome& outcome, const std::string& where, Findings& findings,
          const std::vector<std::string>& place = {});

// The stages of a pipeline as the kit runs them. Not for use outside the kit.

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

// Parts of parameters as ranks hold them.

using comparison::cut;
using comparison::Difference;
using comparison::difference;
using comparison::element_text;
using comparison::number_text;
using comparison::positions_in;
using comparison::shape_text;
using comparison::text_of;

// Where `local` lies among the values that an optimizer updates; nullopt: it is no view of them.
struct Place {
  size_t group = 0;
  int64_t offset = 0;
};
std::optional<Place> place_of(const at::Tensor& local,
                              const std::vector<FlatParameterGroup>& groups);
// The elements of a group's tensor (a gradient, a state) that belong to `local`.
at::Tensor alike(const at::Tensor& flat, const Place& place, const at::Tensor& local);

// "the state momentum of lm_head.weight"
std::string key_of(const StateTensor& kept);

// What one rank would save of one parameter, or of one of state_tensors(), which has no momentum.
struct SavedPart {
  std::string name;
  std::vector<int64_t> shape;
  Region region;
  at::Tensor values, momentum;
  StateReplica replica = {};
};
using SavedParts = std::vector<std::vector<SavedPart>>;  // by rank

// Puts them together as a checkpoint does; what stands in the way of that goes to `problems`.
TrainingState assemble(const SavedParts& parts, const TrainingState& expected,
                       std::vector<std::string>& problems);
// What a checkpoint of that state gives for one of state_tensors(), whole; undefined: nothing.
at::Tensor loaded(const TrainingState& state, const StateTensor& kept);

}  // namespace meshwright::conformance
