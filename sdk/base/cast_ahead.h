// Weights of Linears that a forward is about to use under autocast, cast all at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "meshwright/export.h"

namespace torch::nn {
class Module;
}

namespace meshwright {

// Of all Linears in `module` whose weights have memory by now, for forwards of this thread while it
// lives. Nothing where x is not on a device or autocast is off; nor without gradients, for what
// autocast keeps serves many forwards then.
class MESHWRIGHT_API CastAhead {
 public:
  CastAhead(const at::Tensor& x, const torch::nn::Module& module);
  ~CastAhead();
  CastAhead(const CastAhead&) = delete;
  CastAhead& operator=(const CastAhead&) = delete;

  // Undefined where none is known.
  static at::Tensor find(const at::Tensor& weight, at::ScalarType type);

 private:
  void cast(const at::Tensor& x, const torch::nn::Module& module, at::ScalarType type);
  std::vector<at::Tensor> weights_, casts_;
  const CastAhead* outer_;
};

}  // namespace meshwright
