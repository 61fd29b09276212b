// Attention over queries and keys that lie in parts: tensors with the positions of their rows. What
// the attention core and the exchanges of context parallelism share.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <utility>
#include <vector>

#include "meshwright/nn/attention.h"
#include "sdk/base/context_split.h"

namespace meshwright::detail {

// Rows of queries: [batch, rows, heads, head_dim] each, lse and delta [batch, heads, rows], in the
// dtype that attention computes in but for query, out and grad.
struct QueryPart {
  std::vector<PositionRun> runs = {};
  at::Tensor query = {};
  at::Tensor out = {};      // forward: rounded; undefined: not wanted. Backward: see below
  at::Tensor partial = {};  // forward: as computed; undefined: not wanted
  at::Tensor lse = {};      // forward writes it, backward reads it
  at::Tensor grad = {}, delta = {},
             to_query = {};  // backward; to_query is added to, or written if `first`
  bool first = false;
};
// Rows of keys and values: [batch, rows, kv_heads, head_dim] each.
struct KeyPart {
  std::vector<PositionRun> runs = {};
  at::Tensor key = {}, value = {};
  at::Tensor to_key = {}, to_value = {};  // backward; added to, or written if `first`
  bool first = false;
};

// Whether these can be called. Heads must be dense. On the CPU: float, double and bfloat16, by our
// kernel; on CUDA devices: float, bfloat16 and float16, by LibTorch's operators.
bool attends(const at::Tensor& query);
// Whether our kernel computes these: its backward reads deltas, that of LibTorch's operators out.
bool has_attention_kernel(const at::Tensor& query);
// In the dtype of autocast where that is on: as LibTorch's attention takes them.
at::Tensor as_autocast(const at::Tensor& x);
// float, or double for double.
at::ScalarType attention_compute_type(at::ScalarType type);

// Parts of one call must not overlap. `documents`: as in Sequence.
void attend(const AttentionOptions& options, const at::Tensor& documents,
            const std::vector<QueryPart>& queries, const std::vector<KeyPart>& keys);
void attend_backward(const AttentionOptions& options, const at::Tensor& documents,
                     const std::vector<QueryPart>& queries, const std::vector<KeyPart>& keys);
// Rows over their own keys, at positions `runs`. Gives out and lse, and in backward the gradients
// of query, key and value in their dtypes.
std::pair<at::Tensor, at::Tensor> attend_own(const AttentionOptions& options,
                                             const at::Tensor& documents,
                                             const std::vector<PositionRun>& runs,
                                             const at::Tensor& query, const at::Tensor& key,
                                             const at::Tensor& value);
std::array<at::Tensor, 3> attend_own_backward(const AttentionOptions& options,
                                              const at::Tensor& documents,
                                              const std::vector<PositionRun>& runs,
                                              const at::Tensor& query, const at::Tensor& key,
                                              const at::Tensor& value, const at::Tensor& out,
                                              const at::Tensor& lse, const at::Tensor& grad);
// sum(grad * out) of every row: [batch, heads, rows]. Undefined where our kernel does not compute.
at::Tensor attention_deltas(const at::Tensor& out, const at::Tensor& grad);
// (out, lse) of more keys into (into, into_lse), all in the compute type.
void merge_attention(const at::Tensor& into, const at::Tensor& into_lse, const at::Tensor& out,
                     const at::Tensor& lse);

}  // namespace meshwright::detail
