// The end of a step for a loop that itself waits for the device between gradients and their norm,
// and whose optimizer's kernels multiply gradients as they read them: a wait of the host, and a
// pass over all gradients, less.
#pragma once

#include "meshwright/export.h"

namespace meshwright {

class MESHWRIGHT_API LateClipping {
 public:
  virtual ~LateClipping();
  // Collective. As ParallelModel::end_step(), but gradients that lie on the host may still be on
  // their way there: it has them once it has waited for the current stream of the device.
  virtual void end_step_later() = 0;
  // Collective. As ParallelModel::clip_grad_norm(), but where all gradients are on a device, or
  // some are float16, they stay as they are, and `left` is what all of update_groups() are still to
  // be multiplied with: finite and above zero. Otherwise `left` is 1.
  virtual double clip_grad_norm_later(double max_norm, double scale, double& left) = 0;
};

}  // namespace meshwright
