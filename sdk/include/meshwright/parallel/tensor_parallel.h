// Tensor parallelism (Shoeybi et al. 2019) with sequence parallelism (Korthikanti et al. 2022): a
// plan's styles, executed on a live model. Parameters are cut to this rank's part, and hooks around
// forward bring activations into the layout that each module needs.
//
//   // Before the model is sharded or replicated over the other axes:
//   policy.tensor_parallel = apply_tensor_parallel(request);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/nn/loss.h"
#include "meshwright/parallel/gradients.h"
#include "meshwright/parallel/group.h"
#include "meshwright/parallel/parallel.h"

namespace meshwright {

class MESHWRIGHT_API TensorParallel {
 public:
  // How a parameter was cut: along `dim`, of the sizes that the model's author gave it.
  struct Cut {
    int64_t dim = 0;
    std::vector<int64_t> whole;
    Chunk chunk;
  };
  struct Parts;  // of the SDK library
  explicit TensorParallel(std::unique_ptr<Parts> parts);
  ~TensorParallel();

  const std::shared_ptr<Group>& group() const;
  // nullptr: every rank holds the whole.
  const Cut* find(std::string_view parameter) const;
  // Turns sizes and offsets within this rank's part into those within the whole, and adds the
  // placement over tp.
  void describe(ParallelParameter& parameter) const;
  // Collective. The whole parameter, from all parts.
  at::Tensor whole(std::string_view parameter, const at::Tensor& local) const;
  // For clip_gradients(): parameters that are cut here and those that are not. `groups`: what else
  // cuts them all.
  std::vector<GradientSet> gradient_sets(const std::vector<ParallelParameter>& parameters,
                                         const std::vector<std::shared_ptr<Group>>& groups) const;
  // Collective, once per step on final gradients: sums, in the dtype `reduce`, the gradients of
  // parameters that saw only a part of the heads or of the sequence (semantics 2.10).
  void sum_partial_gradients(const std::vector<ParallelParameter>& parameters,
                             at::ScalarType reduce);
  // Set when the model's output is logits of which this rank has some columns.
  const std::optional<VocabularyShard>& vocabulary() const;

 private:
  std::unique_ptr<Parts> parts_;
};

// Collective over the tp group of the request's mesh; nullptr when there is none or the plan is
// empty. Parameters that hold values are taken from the group's first rank. Throws
// Error(bad_module) for a styled module without hooks, or that is no Linear or Embedding where the
// style needs one, and what resolve_tp_modules() and check_tp_blocks() throw.
MESHWRIGHT_API std::shared_ptr<TensorParallel> apply_tensor_parallel(
    const ParallelizeRequest& request);

// Collective. Logits [..., local vocabulary] to [..., vocabulary] on every rank; as they are
// without a shard. Differentiable, for a loss that all ranks compute alike.
MESHWRIGHT_API at::Tensor whole_logits(const at::Tensor& logits,
                                       const std::optional<VocabularyShard>& shard);

}  // namespace meshwright
