#include "meshwright/nn/layers.h"

#include <ATen/ops/empty.h>

namespace meshwright {

void reallocate(const at::Tensor& parameter, at::IntArrayRef sizes,
                const at::TensorOptions& options) {
  parameter.unsafeGetTensorImpl()->shallow_copy_from(at::empty(sizes, options).getIntrusivePtr());
}

Linear make_linear(int64_t in, int64_t out, bool bias, const at::TensorOptions& options) {
  Linear linear(torch::nn::LinearOptions(1, 1).bias(bias));
  linear->options.in_features(in).out_features(out);
  reallocate(linear->weight, {out, in}, options);
  if (bias) reallocate(linear->bias, {out}, options);
  return linear;
}

}  // namespace meshwright
