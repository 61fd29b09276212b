// Linear, Embedding and RMSNorm with hooks: what a model takes in place of torch::nn's, so that tensor parallelism can wrap them.
#pragma once

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "meshwright/module.h"

namespace meshwright {

// torch::nn::Linear: the same results and members, faster in float32 on some processors.
class MESHWRIGHT_API LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& x);
};
MESHWRIGHT_MODULE(Linear);
MESHWRIGHT_MODULE_IMPL(Embedding, torch::nn::EmbeddingImpl);

// Root mean square normalisation over the last dimension (Zhang and Sennrich 2019), as transformers computes it: normalised in float32,
// cast to the input's dtype, then scaled; with NormScale::one_plus_weight, as Gemma has it, scaled by 1 + weight, then cast.
// weight: [size].
enum class NormScale : uint8_t { weight, one_plus_weight };
class MESHWRIGHT_API RMSNormImpl : public torch::nn::Module {
 public:
  RMSNormImpl(int64_t size, double epsilon, NormScale scale = NormScale::weight);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;
  double epsilon;
  NormScale scale;
};
MESHWRIGHT_MODULE(RMSNorm);

}  // namespace meshwright
