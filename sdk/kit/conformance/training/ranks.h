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
};

// What one rank finds; `refusal` where the layout is not run, by the code of an error or a word.
struct RankFound {
  std::vector<std::string> problems;
  std::string refusal;
};

struct RunOutcome {
  std::map<int64_t, std::vector<std::string>> problems;  // by rank; -1: of none in particular
  std::string refusal;
};

// What `body` throws is a problem of its rank, Error(not_in_release | device_unavailable) a
// refusal. A rank that found something before is not asked for what its exception says, nor is one
// whose group failed after another rank had found something: that mostly follows.
RunOutcome collect(int64_t ranks,
                   const std::function<void(const std::shared_ptr<World>&, RankFound&)>& body);

// The first that each rank found: what follows is mostly its consequence.
void tell(const RunOutcome& outcome, const std::string& where, Findings& findings);

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

// Parts of parameters as ranks hold them, put beside whole ones. Not for use outside the kit.

// The elements of a whole tensor that a region has, in its order: int64.
at::Tensor positions_in(const Region& region, const std::vector<int64_t>& shape);
// They themselves, in the shape that the region is stored in.
at::Tensor cut(const at::Tensor& whole, const Region& region);

// "element [2, 3]" of a tensor of that shape.
std::string element_text(int64_t position, const std::vector<int64_t>& shape);
std::string number_text(double value);
std::string shape_text(at::IntArrayRef shape);

// Where two tensors of one shape differ most, if by more than `tolerance`; NaN is a difference.
struct Difference {
  int64_t at = 0;  // in the flattened tensor
  double found = 0, expected = 0;
};
std::optional<Difference> difference(const at::Tensor& found, const at::Tensor& expected,
                                     double tolerance);
// "0.5 at element [2, 3], ", of a part at the place that it has in the whole.
std::string text_of(const Difference& difference, const Region& region,
                    const std::vector<int64_t>& shape);

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
