// Attention over queries and keys that lie in parts: tensors with the positions of their rows. What
// the attention core and the exchanges of context parallelism share.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "meshwright/nn/attention.h"
#include "meshwright/parallel/context_split.h"

namespace meshwright::detail {

// Rows of queries: [batch, rows, heads, head_dim] each, lse and delta [batch, heads, rows], in the
// dtype that attention computes in but for query, out and grad.
struct QueryPart {
  std::vector<PositionRun> runs = {};
  at::Tensor query = {};
  at::Tensor out = {};      // forward: rounded; undefined: not wanted
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

// Whether these can be called: CPU tensors of float, double or bfloat16 with dense heads.
bool attends(const at::Tensor& query);
// float, or double for double.
at::ScalarType attention_compute_type(at::ScalarType type);

// Parts of one call must not overlap. `documents`: as in Sequence.
void attend(const AttentionOptions& options, const at::Tensor& documents,
            const std::vector<QueryPart>& queries, const std::vector<KeyPart>& keys);
void attend_backward(const AttentionOptions& options, const at::Tensor& documents,
                     const std::vector<QueryPart>& queries, const std::vector<KeyPart>& keys);
// sum(grad * out) of every row: [batch, heads, rows].
at::Tensor attention_deltas(const at::Tensor& out, const at::Tensor& grad);
// (out, lse) of more keys into (into, into_lse), all in the compute type.
void merge_attention(const at::Tensor& into, const at::Tensor& into_lse, const at::Tensor& out,
                     const at::Tensor& lse);

}  // namespace meshwright::detail
