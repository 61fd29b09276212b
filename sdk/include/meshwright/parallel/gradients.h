// The gradient norm over several mesh axes, and clipping by it (semantics 8.3).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "meshwright/parallel/group.h"

namespace meshwright {

// Gradients that are cut over the same groups: their squares add up over exactly those. Replicated
// axes are not listed, so a replicated parameter counts once.
struct GradientSet {
  std::vector<at::Tensor> gradients = {};
  std::vector<std::shared_ptr<Group>> groups = {};
  bool counted = true;  // false: scaled and clipped with the others, which count them already
  std::shared_ptr<const Later> later = {};
};

// Collective: every rank passes the same sets in the same order, also when it has no element of
// one. Multiplies all by `scale`, then by min(1, max_norm / (norm + 1e-6)) when max_norm > 0;
// returns the L2 norm after `scale`, before clipping. A norm that is not finite leaves the
// gradients unclipped. `device`: where the groups reduce. `pipeline`: ranks that hold other
// parameters, whose squares add up to those of all sets; null: none.
MESHWRIGHT_API double clip_gradients(const std::vector<GradientSet>& sets, double max_norm,
                                     double scale, at::Device device,
                                     const std::shared_ptr<Group>& pipeline = {});

}  // namespace meshwright
