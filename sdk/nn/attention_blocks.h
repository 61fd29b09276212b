// Attention over queries and keys in parts (attention_parts.h) by calls of LibTorch's operators:
// blocks of rows and keys, whose outputs are merged by their lse, and whose gradients add up.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "attention_blocks_operators.h"
#include "attention_parts.h"

namespace meshwright::detail {

// As attend and attend_backward, but that backward reads out and no delta.
MESHWRIGHT_API void attend_by_blocks(const AttentionOperators& operators,
                                     const AttentionOptions& options, const at::Tensor& documents,
                                     const std::vector<QueryPart>& queries,
                                     const std::vector<KeyPart>& keys);
MESHWRIGHT_API void attend_backward_by_blocks(const AttentionOperators& operators,
                                              const AttentionOptions& options,
                                              const at::Tensor& documents,
                                              const std::vector<QueryPart>& queries,
                                              const std::vector<KeyPart>& keys);
// As merge_attention, but that `out` may be narrower than the compute type.
MESHWRIGHT_API void merge_blocks(const at::Tensor& into, const at::Tensor& into_lse,
                                 const at::Tensor& out, const at::Tensor& lse);

// Rows that have their own keys and no others, if one call computes them; its results are then the
// operator's own tensors.
MESHWRIGHT_API std::optional<AttentionCall> whole_call(const AttentionOptions& options,
                                                       const at::Tensor& documents,
                                                       const std::vector<PositionRun>& runs,
                                                       const at::Tensor& query,
                                                       const at::Tensor& key,
                                                       const at::Tensor& value);

}  // namespace meshwright::detail
