// Buffers of a model that was built elsewhere than where it computes.
#pragma once

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

namespace meshwright::detail {

// Moved in their places: whoever holds them sees it. Those on the meta device stay.
inline void place_buffers(torch::nn::Module& model, at::Device device) {
  c10::NoGradGuard no_grad;
  for (at::Tensor& buffer : model.buffers())
    if (buffer.defined() && !buffer.is_meta() && buffer.device() != device)
      buffer.set_data(buffer.to(device));
}

}  // namespace meshwright::detail
