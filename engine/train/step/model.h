// The model that a job names, made to run: of a config.json or of a plugin.
#pragma once

#include <memory>

#include "engine/job/plan.h"
#include "meshwright/model/running_model.h"
#include "meshwright/trainer.h"

namespace torch::nn {
class Module;
}

namespace meshwright::train {

struct Model {
  plan::JobModel source;
  ModelOutline outline;
  std::unique_ptr<RunningModel> running;
  bool gaussian_adapters = false;  // lora.init

  std::shared_ptr<torch::nn::Module> module() const { return running->module(); }
  // Of a parameter of its family, or of an adapter beside it.
  InitialValue initial_value(const ParameterOutline& parameter) const;
};

// Local. Parameters have no values yet. Throws what the family throws, and Error(bad_module) where
// its module is not what its outline says.
Model make_model(const Job& job);

// Throws Error(usage) for a model that cannot make text.
void check_generates(const Model& model);

// Throws Error(bad_module) naming the first parameter in which they differ.
void check_outline(const torch::nn::Module& module, const ModelOutline& outline);

}  // namespace meshwright::train
