// Watches the modules of a model: what each gives in the forward of a micro-batch, and the gradient
// that comes back to it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace meshwright::comparison {

struct Seen {
  std::string module;
  int64_t micro_batch = 0;
  at::Tensor output;    // the first floating-point tensor of the result
  at::Tensor gradient;  // of the loss with respect to it; undefined: none came
  // Backward computed it again: by how much that differed from what this module gave in any
  // micro-batch, at the least, over the largest element. 0: not computed again, or alike.
  double again = 0;
};

// Sees the first call of each module and micro-batch; what a backward computes again tells of
// gradients, and of whether it is the same. Modules without hooks (HookHost) are not seen. The
// hooks stay with the model and see nothing once this has ended. Not thread-safe; a rank has its
// own.
class Watch {
 public:
  // Behind the hooks that a strategy has attached, so that it sees what the next module sees.
  explicit Watch(torch::nn::Module& model);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void begin(int64_t micro_batch);
  void stop();
  // In the order of the forward.
  std::vector<Seen> take();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace meshwright::comparison
