// What a model family's make() gives: the module that trains.
#pragma once

#include <torch/nn/module.h>

#include <memory>

#include "meshwright/export.h"

namespace meshwright {

class MESHWRIGHT_API RunningModel {
 public:
  RunningModel() = default;
  RunningModel(const RunningModel&) = delete;
  RunningModel& operator=(const RunningModel&) = delete;
  virtual ~RunningModel();
  virtual std::shared_ptr<torch::nn::Module> module() = 0;
  // Token ids [batch, length] int64, or the hidden states of the stage before, to logits [batch,
  // length, vocabulary], or the hidden states of this stage.
  virtual at::Tensor forward(const at::Tensor& input) = 0;
};

}  // namespace meshwright
