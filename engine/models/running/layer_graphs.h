// dist_env.cuda_graphs: the work of a layer's forward and of its backward, each launched as one.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "meshwright/nn/rotary.h"

namespace meshwright::modules {

// Of one layer. The first forward with gradients is run; the second of the same shapes is captured,
// and those after it launch what was captured. Others are run: without gradients, of other shapes
// or with other parameters that train, of packed documents, under autocast, while a forward waits
// for its backward, and, before there is a capture, while another forward's result is kept.
// Gradients are those of autograd::grad, whether launched or run; a backward comes once.
class LayerGraphs {
 public:
  using Layer = std::function<at::Tensor(const at::Tensor& x, const RotaryTable& rotary)>;
  // What layer(x, rotary) gives, which has no other arguments than the parameters of `module`.
  // Throws Error(bad_module) where these are no longer where they were, or are others, where a
  // backward runs twice or with gradients of its own, and where the layer cannot be captured.
  at::Tensor forward(const at::Tensor& x, const RotaryTable& rotary,
                     const torch::nn::Module& module, const Layer& layer);

  struct Captured;

 private:
  std::shared_ptr<Captured> captured_;
  std::vector<int64_t> seen_;  // the shape of the last forward that could have been captured
};

// Lets all layers of a decoder do so, on a device. Throws Error(device_unavailable) where there are
// no graphs, Error(not_in_release) for a model without such layers, or with windows, dropout or
// experts in them.
void graph_layers(torch::nn::Module& model, c10::Device device);

}  // namespace meshwright::modules
