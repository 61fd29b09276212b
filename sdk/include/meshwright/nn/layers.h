// Linear, Embedding and norms with hooks: what a model takes in place of torch::nn's, so that
// tensor parallelism can wrap them. All take x [.., size] and give the dtype of x.
#pragma once

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <optional>

#include "meshwright/nn/module.h"

namespace meshwright {

// torch::nn::Linear: the same results and members, faster in float32 on some processors.
class MESHWRIGHT_API LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& x);

  // Products in 8-bit floats (e4m3; gradients e5m2), each matrix scaled by its largest element,
  // where both sizes of the weight are multiples of 16; the weight itself keeps its dtype. Devices:
  // capability 8.9 and above. Meant for layers, not for heads.
  bool float8 = false;
  std::shared_ptr<const Later> later = {};
};
MESHWRIGHT_MODULE(Linear);
// One whose tensors are made as asked and hold nothing yet: LibTorch's own constructor fills them
// on the CPU.
MESHWRIGHT_API Linear make_linear(int64_t in, int64_t out, bool bias,
                                  const at::TensorOptions& options);
// The same Parameter with other sizes, dtype and device, without values; modules and optimizers
// that hold it see the change.
MESHWRIGHT_API void reallocate(const at::Tensor& parameter, at::IntArrayRef sizes,
                               const at::TensorOptions& options);

// torch::nn::Embedding whose rows are multiplied by `scale`, rounded to the weight's dtype, as
// Gemma's are.
class MESHWRIGHT_API EmbeddingImpl : public torch::nn::EmbeddingImpl {
 public:
  using torch::nn::EmbeddingImpl::EmbeddingImpl;
  at::Tensor forward(const at::Tensor& ids);  // [..] int64 to [.., width]

  double scale = 1;
  std::shared_ptr<const Later> later = {};
};
MESHWRIGHT_MODULE(Embedding);
// As make_linear(); weight: [rows, width]. The row `padding` gets no gradient.
MESHWRIGHT_API Embedding make_embedding(int64_t rows, int64_t width,
                                        const at::TensorOptions& options,
                                        std::optional<int64_t> padding = std::nullopt);

// Root mean square normalisation over the last dimension (Zhang and Sennrich 2019), as transformers
// computes it: normalised in float32, cast to the input's dtype, then scaled; with
// NormScale::one_plus_weight, as Gemma has it, scaled by 1 + weight, then cast. weight: [size].
enum class NormScale : uint8_t { weight, one_plus_weight };
class MESHWRIGHT_API RMSNormImpl : public torch::nn::Module {
 public:
  RMSNormImpl(int64_t size, double epsilon, NormScale scale = NormScale::weight,
              const at::TensorOptions& options = {});
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;
  double epsilon;
  NormScale scale;
  std::shared_ptr<const Later> later = {};
};
MESHWRIGHT_MODULE(RMSNorm);

// Layer normalisation over the last dimension (Ba et al. 2016). weight, bias: [size].
class MESHWRIGHT_API LayerNormImpl : public torch::nn::Module {
 public:
  LayerNormImpl(int64_t size, double epsilon, const at::TensorOptions& options = {});
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight, bias;
  double epsilon;
  std::shared_ptr<const Later> later = {};
};
MESHWRIGHT_MODULE(LayerNorm);

}  // namespace meshwright
