// The gated activation of a decoder's MLP, act(gate) * up, under the names of transformers'
// hidden_act.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "meshwright/nn/module.h"

namespace meshwright::modules {

using Activation = at::Tensor (*)(const at::Tensor&);

Activation find_activation(
    std::string_view name);  // nullptr when not known; those of outlines::known_activations() are

class GatedActivationImpl : public torch::nn::Module {
 public:
  explicit GatedActivationImpl(std::string_view name);
  at::Tensor forward(const at::Tensor& gate, const at::Tensor& up);

 private:
  Activation activation_;
  bool silu_;
};
MESHWRIGHT_MODULE(GatedActivation);

// The activation alone, of an MLP without a gate.
class PlainActivationImpl : public torch::nn::Module {
 public:
  explicit PlainActivationImpl(std::string_view name) : activation_(find_activation(name)) {}
  at::Tensor forward(const at::Tensor& x) { return activation_(x); }

 private:
  Activation activation_;
};
MESHWRIGHT_MODULE(PlainActivation);

}  // namespace meshwright::modules
