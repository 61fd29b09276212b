// The model that a job names, made to run, and in which precision it computes.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <string>

#include "engine/job/plan.h"
#include "meshwright/model/running_model.h"
#include "meshwright/options.h"
#include "meshwright/outline.h"
#include "meshwright/trainer.h"

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

// run.float32_matmul_precision. Tells LibTorch, for all of the process, what `run` says, where this
// rank computes on a device; on CPUs all stays as it is. `dist` is dist_env. Returns what the user
// should hear; empty: nothing.
[[nodiscard]] std::string set_float32_products(const Options& run, const Options& dist,
                                               c10::Device device);

// model.float8_linear. Sets LinearImpl::float8 in the layers of the model, before a strategy cuts
// their weights. Throws Error(model_does_not_fit) when there is none whose sizes allow it, and
// Error(device_unavailable) when `device` has no such products.
void multiply_in_float8(torch::nn::Module& model, const ModelOutline& outline, c10::Device device);

// Autocast for one forward, as distributed.autocast_dtype asks.
class AutocastScope {
 public:
  AutocastScope(std::optional<c10::ScalarType> dtype, c10::DeviceType device);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  bool on_, enabled_ = false;
  c10::DeviceType device_;
  c10::ScalarType dtype_ = c10::kFloat;
};

}  // namespace meshwright::train
