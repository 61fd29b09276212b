// What [[optimizer.group]] does to a model that runs: which parameters it freezes, and which
// elements of the flat tensors that a strategy hands out are updated alike.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/job/parameter_groups.h"
#include "engine/train/step/optimizer.h"
#include "meshwright/outline.h"
#include "meshwright/parallel/parallel.h"

namespace torch::nn {
class Module;
}

namespace meshwright::plan {
struct JobPlan;
}

namespace meshwright::train {

// Before the model is made parallel. Freezes in `module` and `outline` what groups freeze, and
// gives parameters the dtypes of group_parameters(). A plan that knows no model gets the warnings.
// Throws Error(conflict) where nothing is left that trains.
plan::ParameterGroups freeze_parameters(const config::Config& config, ModelOutline& outline,
                                        torch::nn::Module& module, plan::JobPlan& plan);

// The classes of the optimizer, which has the model's update_groups(): as ranges of them, since
// each parameter's part of a shard is a run of its elements. What lies between parameters, the
// padding, goes with the one before it. `stages`: the outline of a pipeline's rank.
std::vector<UpdateClass> update_classes(const ParallelModel& model, const ModelOutline* stages,
                                        const plan::ParameterGroups& groups);

// These classes, cut so that each parameter begins where `began` says (Optimizer::began).
std::vector<UpdateClass> classes_begun(const ParallelModel& model, const ModelOutline* stages,
                                       const std::vector<UpdateClass>& classes,
                                       const std::map<std::string, int64_t>& began);

}  // namespace meshwright::train
