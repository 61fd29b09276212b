// model.float8_linear: Linears of layers that multiply in 8-bit floats.
#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include "meshwright/outline.h"

namespace meshwright::train {

// Sets LinearImpl::float8 in the layers of the model, before a strategy cuts their weights. Throws
// Error(model_does_not_fit) when there is none whose sizes allow it, and Error(device_unavailable)
// when `device` has no such products.
void multiply_in_float8(torch::nn::Module& model, const ModelOutline& outline, c10::Device device);

}  // namespace meshwright::train
