// What losses are multiplied with before backward, so that small gradients do not become zero where
// they are computed or kept in float16, whose smallest number is 6e-8.
#pragma once

#include <string>

#include "engine/config/config.h"

namespace meshwright::plan {

struct LossScale {
  double start = 1;      // of the mean loss of a step; a power of two, which rounds nothing
  bool dynamic = false;  // half as much after gradients that overflow, more after none did for long
};

// Of optimizer.loss_scale and dynamic_loss_scale. `float16`: whether any gradient is in it;
// otherwise there is no scale. `targets`: of a step on a rank; chosen by itself, the scale leaves
// the gradients of a target about as large as those of its own loss. Throws Error(out_of_range) for
// what is no power of two.
LossScale loss_scale(const config::Config& config, bool float16, double targets);
std::string loss_scale_notice(const LossScale& scale);

}  // namespace meshwright::plan
