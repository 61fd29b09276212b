// The losses of single targets, which cross_entropy_sum() gives the sum of: for who tells the loss
// of some of them without computing it again.
#pragma once

#include <ATen/core/Tensor.h>

#include "meshwright/export.h"

namespace meshwright::detail {

// While it lives, what cross_entropy_sum() sums on this thread is kept, that of the last call. One
// at a time.
class MESHWRIGHT_API TargetLosses {
 public:
  TargetLosses();
  ~TargetLosses();
  TargetLosses(const TargetLosses&) = delete;
  TargetLosses& operator=(const TargetLosses&) = delete;
  // float64, one of each target in their order, by their weights and 0 where ignored. Undefined
  // where `sum` is not what the last call returned, as where something was added to that.
  at::Tensor of(const at::Tensor& sum) const;
  // cross_entropy_sum()'s own.
  static TargetLosses* kept();
  at::Tensor losses, sum;
};

}  // namespace meshwright::detail
