// Clipping that may leave its factor to the optimizer.
#pragma once

#include <memory>
#include <vector>

#include "meshwright/parallel/gradients.h"

namespace meshwright::detail {

// As clip_gradients(). With `left`: see ParallelModel::clip_grad_norm_later().
double clip_or_leave(const std::vector<GradientSet>& sets, double max_norm, double scale,
                     at::Device device, const std::shared_ptr<Group>& pipeline, double* left);

}  // namespace meshwright::detail
