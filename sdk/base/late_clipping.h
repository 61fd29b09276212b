// Clipping that leaves its factor to the optimizer, whose kernels multiply gradients as they read
// them: a pass over all of them less.
#pragma once

#include "meshwright/export.h"

namespace meshwright {

class MESHWRIGHT_API LateClipping {
 public:
  virtual ~LateClipping();
  // Collective. As ParallelModel::clip_grad_norm(), but where all gradients are on a device they
  // stay as they are, and `left` is what all of update_groups() are still to be multiplied with:
  // finite and above zero. Otherwise `left` is 1.
  virtual double clip_grad_norm_later(double max_norm, double scale, double& left) = 0;
};

}  // namespace meshwright
