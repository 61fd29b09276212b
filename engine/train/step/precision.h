// In which precision a model computes.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <optional>
#include <string>

#include "meshwright/options.h"
#include "meshwright/outline.h"

namespace meshwright::train {

// run.float32_matmul_precision: matrix products of float32 on devices, in float32 or in TF32.

// Tells LibTorch, for all of the process, what `run` says, where this rank computes on a device; on
// CPUs all stays as it is. `dist` is dist_env. Returns what the user should hear; empty: nothing.
[[nodiscard]] std::string set_float32_products(const Options& run, const Options& dist,
                                               c10::Device device);

// model.float8_linear: Linears of layers that multiply in 8-bit floats.

// Sets LinearImpl::float8 in the layers of the model, before a strategy cuts their weights. Throws
// Error(model_does_not_fit) when there is none whose sizes allow it, and Error(device_unavailable)
// when `device` has no such products.
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
