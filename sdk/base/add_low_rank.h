// What an adapter (Hu et al. 2021) adds to the output of a Linear.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "meshwright/export.h"

namespace meshwright {

// y + scale B (A x), in: A [r, in], out: B [out, r]. y is what a Linear gave for x, and nobody else
// has it: the result takes its memory. Backward keeps x and A x; gradients of A and B may be put
// off (zero bubble pipelines), and those of x from several adapters add up in one tensor. With
// `dropped`, bool of x's shape, A reads zeros where that is true; backward keeps it beside x.
MESHWRIGHT_API at::Tensor add_low_rank(const at::Tensor& y, const at::Tensor& x,
                                       const at::Tensor& in, const at::Tensor& out, double scale,
                                       const at::Tensor& dropped = {});
// Whether these can be added so: some of one dtype, without autocast.
MESHWRIGHT_API bool fits_low_rank(const at::Tensor& y, const at::Tensor& x, const at::Tensor& in,
                                  const at::Tensor& out);

// The same in two steps, for adapters of which several read one x: scale A x of each, [rows of x,
// its r], by one product of x with all A below each other. The gradient of x is one product, too,
// and so are those of all A. What of it nobody uses costs its part of the forward alone.
MESHWRIGHT_API std::vector<at::Tensor> narrow_low_rank(const at::Tensor& x, at::TensorList in,
                                                       double scale);
// y + B h, `narrow`: h, one of those; fits_low_rank() holds.
MESHWRIGHT_API at::Tensor widen_low_rank(const at::Tensor& y, const at::Tensor& narrow,
                                         const at::Tensor& out);
// Whether `in` can be one of those that narrow_low_rank() multiplies: as fits_low_rank(), and its
// unit is gathered.
MESHWRIGHT_API bool reads_low_rank(const at::Tensor& x, const at::Tensor& in);

}  // namespace meshwright
