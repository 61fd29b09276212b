// Layer normalisation (Ba et al. 2016) with hooks, its tensors made as asked.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "meshwright/nn/module.h"

namespace meshwright::modules {

class LayerNormImpl : public torch::nn::Module {
 public:
  LayerNormImpl(int64_t size, double epsilon, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight, bias;

 private:
  double epsilon_;
};
MESHWRIGHT_MODULE(LayerNorm);

}  // namespace meshwright::modules
