// Context parallelism: the tokens of a sample lie on the ranks of cp, and attention meets the keys
// of all of them (ring attention: Liu et al. 2023; DeepSpeed-Ulysses: Jacobs et al. 2023).
//
//   std::shared_ptr<ContextParallel> context = model.context_parallel();
//   at::Tensor targets = context->shard(ids.narrow(1, 1, length), 1, -100);  // shifted before
//   auto scope = context->scope(length, batch);
//   at::Tensor logits = net(context->shard(ids.narrow(1, 0, length), 1, 0));
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "meshwright/nn/attention.h"
#include "meshwright/parallel/group.h"
#include "meshwright/parallel/parallel.h"

namespace meshwright {

class MESHWRIGHT_API ContextParallel {
 public:
  struct Parts;  // of the SDK library
  explicit ContextParallel(std::unique_ptr<const Parts> parts);
  ~ContextParallel();

  const std::shared_ptr<Group>& group() const;
  // Of samples of `length` tokens: the positions of a rank's rows, in their order, padding
  // included; and how many of its rows are not padding. Local.
  std::vector<PositionRun> rows_of(int64_t length, int64_t rank) const;
  int64_t tokens_of(int64_t length, int64_t rank) const;

  // This rank's rows of a tensor that has whole samples along `dim`, padded with `padding`. Local.
  // Differentiable.
  at::Tensor shard(const at::Tensor& x, int64_t dim, const c10::Scalar& padding) const;
  // Collective, the inverse: the ranks' rows in the order of their positions, without the padding,
  // on every rank. Not differentiable. Throws Error(model_does_not_fit) for rows that are not those
  // of samples of `length` tokens.
  at::Tensor gather(const at::Tensor& x, int64_t dim, int64_t length) const;

  // Around the forward of samples of `length` tokens, [batch] of them where rows are padded.
  // `documents` [batch, length] int32 and `positions` [batch, length] int64 as Sequence has them
  // (of whole samples); both may be undefined. Local.
  SequenceScope scope(int64_t length, int64_t batch, const at::Tensor& documents = {},
                      const at::Tensor& positions = {}) const;

 private:
  std::unique_ptr<const Parts> parts_;
};

// Collective over the cp group of the request's mesh; nullptr without one. Every attention core of
// the model computes over all ranks from now on, and the routers' balance losses count the tokens
// of all. Throws Error(bad_module) for a model without attention cores, naming what looks like
// attention, and what semantics 14.5 says for what cannot be computed so.
MESHWRIGHT_API std::shared_ptr<ContextParallel> apply_context_parallel(
    const ParallelizeRequest& request);

}  // namespace meshwright
