// The sums of a residual stream and the norms that read them, in one pass over memory on a device.
#pragma once

#include <utility>

#include "meshwright/nn/layers.h"

namespace meshwright {

// x + more, or x itself where `more` is not defined, and the norm of that: what the stream goes on
// with, and what the next block reads. Through the norm's hooks, where it has some.
MESHWRIGHT_API std::pair<at::Tensor, at::Tensor> add_and_norm(const at::Tensor& x,
                                                              const at::Tensor& more,
                                                              RMSNorm& norm);

}  // namespace meshwright
