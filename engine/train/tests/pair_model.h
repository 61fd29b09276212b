// A model of one's own, of two Linears, with values before it is made parallel.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "meshwright/nn/layers.h"
#include "meshwright/nn/module.h"

namespace meshwright {

struct PairImpl : torch::nn::Module {
  PairImpl() {
    up = register_module("up", Linear(torch::nn::LinearOptions(6, 10)));
    down = register_module("down", Linear(torch::nn::LinearOptions(10, 3).bias(false)));
  }
  at::Tensor forward(const at::Tensor& x) { return down(up(x).tanh()); }
  Linear up{nullptr}, down{nullptr};
};
MESHWRIGHT_MODULE(Pair);

}  // namespace meshwright
