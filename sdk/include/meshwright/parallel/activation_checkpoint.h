// Activation checkpointing (Chen et al. 2016): a module keeps its inputs instead of its activations
// and runs forward again in backward. Recompute restores random state and autocast, so gradients
// are bitwise identical to those without it.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "meshwright/nn/module.h"
#include "meshwright/shared_options.h"

namespace meshwright {

// One module. Throws Error(bad_module) when it has no hooks. Hooks of the module itself run once,
// hooks of its sub-modules run again.
MESHWRIGHT_API void checkpoint_activations(torch::nn::Module& module);

// The layers of a model, as `mode` says (semantics 6.1): full recomputes whole layers, or, without
// `whole_layers`, attention, mlp and both norms each; selective recomputes mlp and both norms and
// keeps the attention's activations. A layer without any of the known sub-modules is recomputed
// whole. Returns the names of these modules; where no gradients come (6.1) they run once and keep
// nothing.
MESHWRIGHT_API std::vector<std::string> checkpoint_layers(torch::nn::Module& model,
                                                          std::span<const std::string> layers,
                                                          ActivationCheckpointing mode,
                                                          bool whole_layers);

// For modules inside: the tensors of `make`, which runs in the first run of forward; the second one
// gets the same tensors without a call. Outside of checkpointing and without gradients it runs
// every time. Both runs make the same calls in the same order.
MESHWRIGHT_API std::vector<at::Tensor> once_under_recompute(
    const std::function<std::vector<at::Tensor>()>& make);

}  // namespace meshwright
