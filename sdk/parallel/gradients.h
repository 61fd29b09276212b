// Clipping that may leave its factor to the optimizer.
#pragma once

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "meshwright/parallel/gradients.h"

namespace meshwright::detail {

// As clip_gradients(). With `left`: see ParallelModel::clip_grad_norm_deferred().
double clip_or_leave(const std::vector<GradientSet>& sets, double max_norm, double scale,
                     at::Device device, const std::shared_ptr<Group>& pipeline, double* left);

// Buffers of a model that was built elsewhere than where it computes.

// Moved in their places: whoever holds them sees it. Those on the meta device stay.
inline void place_buffers(torch::nn::Module& model, at::Device device) {
  c10::NoGradGuard no_grad;
  for (at::Tensor& buffer : model.buffers())
    if (buffer.defined() && !buffer.is_meta() && buffer.device() != device)
      buffer.set_data(buffer.to(device));
}

}  // namespace meshwright::detail
