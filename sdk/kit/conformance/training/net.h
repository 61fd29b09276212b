// The small model that the kit trains, and its samples. Not for use outside the kit.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/modulelist.h>

#include <span>

#include "meshwright/nn/attention.h"
#include "meshwright/nn/layers.h"
#include "meshwright/parallel/context_parallel.h"

namespace meshwright::conformance {

constexpr int64_t kWidth = 10, kInner = 7, kVocabulary = 13, kLayers = 3, kLength = 5, kHeads = 2;
// Samples of a step: they divide by 1, 2, 3 and 4 ranks.
constexpr int64_t kRows = 12;

// Sizes that divide by no number of ranks. Computes stage by stage where it is asked to.
struct NetImpl : torch::nn::Module {
  NetImpl();
  at::Tensor forward(const at::Tensor& x);
  // Forwards of the MLPs of all layers so far, those that a backward repeats among them.
  int64_t mlp_runs() const;
  Embedding embed{nullptr};
  torch::nn::ModuleList layers;
  Linear head{nullptr};
};
MESHWRIGHT_MODULE(Net);

// The same values in every place and at every time.
Net make_net();

// Samples [rows, kLength + 1] of a step.
at::Tensor samples(int64_t step, std::span<const int64_t> rows);

// The sum of the losses over the targets that this rank has: all of them without `context`.
at::Tensor loss_sum_of(Net& net, const at::Tensor& ids, const ContextParallel* context = nullptr);
// The same of a stage: hidden states, or of the last one the sum.
at::Tensor stage_output(Net& net, const at::Tensor& ids, const at::Tensor& hidden, bool last);

}  // namespace meshwright::conformance
