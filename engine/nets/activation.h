// The gated activation of a decoder's MLP, act(gate) * up, under the names of transformers' hidden_act.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

#include "meshwright/module.h"

namespace meshwright::nets {

using Activation = at::Tensor (*)(const at::Tensor&);

Activation find_activation(std::string_view name);  // nullptr when not known
std::string activation_names();

class GatedActivationImpl : public torch::nn::Module {
 public:
  explicit GatedActivationImpl(std::string_view name);
  at::Tensor forward(const at::Tensor& gate, const at::Tensor& up);

 private:
  Activation activation_;
  bool silu_;
};
MESHWRIGHT_MODULE(GatedActivation);

}  // namespace meshwright::nets
