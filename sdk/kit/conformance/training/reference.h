// What a plain loop makes of the kit's model: the numbers that every layout must reach. Not for use
// outside the kit.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <span>
#include <string>
#include <vector>

#include "sdk/kit/conformance/training/net.h"

namespace meshwright::conformance {

using Tensors = std::map<std::string, at::Tensor>;

// SGD with momentum: the optimizer has a state, which is saved.
constexpr double kRate = 0.1, kMomentum = 0.5;
constexpr int64_t kSteps = 5;
// The step before which everything is saved, and the one whose traffic is counted: the order of
// units is known by then.
constexpr int64_t kSavedStep = 3, kCountedStep = 2;
// The one that is begun, left and begun again.
constexpr int64_t kCutShortStep = 1;

// What each step asks of clip_grad_norm(): one of them scales, another one clips.
struct Clipping {
  double max_norm = 0, scale = 1;
};
constexpr Clipping clipping_of(int64_t step) {
  return step == 1 ? Clipping{0, 0.5} : step == 3 ? Clipping{0.1, 1} : Clipping{};
}

struct TrainingState {
  Tensors parameters, momenta;
  Tensors states = {};  // of state_tensors(), which a plain loop has none of
};

struct Reference {
  std::vector<double> losses, norms;  // by step
  std::vector<Tensors> gradients;     // by step: after clip_grad_norm()
  std::vector<TrainingState> states;  // by step: before it; the last one at the end
};

Reference plain_loop();

// The mean gradients of some samples of a step, not clipped nor scaled, at the reference's state.
Tensors gradients_of(const Reference& reference, int64_t step, std::span<const int64_t> rows);

}  // namespace meshwright::conformance
