// Watches the operators that run within one module and right around it: where a fault lies inside a
// module, they say at which.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sdk/kit/comparison/watch.h"

namespace meshwright::comparison {

struct SeenOperator {
  Seen seen;  // of "model.layers.0.self_attn: aten::mul (3rd)"
  // The autograd nodes that take its output, as far as the module's end shows them: what gives its
  // gradient.
  std::string into;
};

// Sees the operators that are called in the forward of the module `name` and of the module that
// holds it, but not those of other modules with hooks in them, which are watched by themselves.
// Made and ended on the thread that runs the model.
class Operators {
 public:
  Operators(torch::nn::Module& model, const std::string& name);
  ~Operators();
  Operators(const Operators&) = delete;
  Operators& operator=(const Operators&) = delete;

  void begin(int64_t micro_batch);
  void stop();
  // In the order of the forward.
  std::vector<SeenOperator> take();

  struct State;

 private:
  std::shared_ptr<State> state_;
  uint64_t callback_ = 0;
};

}  // namespace meshwright::comparison
