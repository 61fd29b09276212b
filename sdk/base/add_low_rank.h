// What an adapter (Hu et al. 2021) adds to the output of a Linear.
#pragma once

#include <ATen/core/Tensor.h>

#include "meshwright/export.h"

namespace meshwright {

// y + scale B (A x), in: A [r, in], out: B [out, r]. y is what a Linear gave for x, and nobody else
// has it: the result takes its memory. Backward keeps x and A x; gradients of A and B may be put
// off (zero bubble pipelines), and those of x from several adapters add up in one tensor.
MESHWRIGHT_API at::Tensor add_low_rank(const at::Tensor& y, const at::Tensor& x,
                                       const at::Tensor& in, const at::Tensor& out, double scale);
// Whether these can be added so: some of one dtype, without autocast.
MESHWRIGHT_API bool fits_low_rank(const at::Tensor& y, const at::Tensor& x, const at::Tensor& in,
                                  const at::Tensor& out);

}  // namespace meshwright
