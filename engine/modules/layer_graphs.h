// dist_env.cuda_graphs: the work of a layer's forward and of its backward, each launched as one.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/modules/rotary.h"

namespace meshwright::modules {

// Of one layer. The first forward with gradients runs as ever; the second of the same shapes is
// captured, and those after it launch what was captured. Others run as ever: without gradients, of
// other shapes, of packed documents, under autocast, and while a forward waits for its backward.
class LayerGraphs {
 public:
  using Layer = std::function<at::Tensor(const at::Tensor& x, const RotaryTable& rotary)>;
  // What layer(x, rotary) gives, which has no other arguments than the parameters of `module`.
  // Throws Error(bad_module) where these are no longer where they were, or a backward runs twice.
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
