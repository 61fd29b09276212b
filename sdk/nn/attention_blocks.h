// Attention over rows and keys at given positions, cut into blocks that one call of LibTorch's
// attention operators computes: without a mask tensor, and no row without a key. Pure.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "attention_parts.h"
#include "meshwright/export.h"
#include "sdk/base/context_split.h"

namespace meshwright::detail {

// Rows of a tensor and their positions.
struct RowRun {
  int64_t row = 0, position = 0, count = 0;
  int64_t end() const { return position + count; }
};
// Runs that follow each other in their sample are one.
MESHWRIGHT_API std::vector<RowRun> row_runs(const std::vector<PositionRun>& runs);

// The keys that rows see, counted from the last row and the last key (FlashAttention-2: Dao 2023):
// row i of `rows` sees key j of `keys` iff -left <= j - i - (keys - rows) <= right.
struct AttentionBand {
  static constexpr int64_t kOpen = -1;
  int64_t left = kOpen, right = kOpen;
  bool operator==(const AttentionBand&) const = default;
};

// One call, of the samples [sample, sample + samples).
struct AttentionBlock {
  int64_t sample = 0, samples = 0;
  int64_t row = 0, rows = 0;  // of the queries' tensor
  int64_t key = 0, keys = 0;  // of the keys' tensor
  AttentionBand band = {};
  // Not empty: rows and keys are the same positions, and these are the lengths of the documents of
  // one sample after the other, each of which attends to itself; `band` is that of each.
  std::vector<int64_t> documents = {};
};

// Where the documents of each sample begin, ascending.
using DocumentStarts = std::vector<std::vector<int64_t>>;

// What the rows of one run see of the keys of one run: causal, within the window (0: none), of the
// same document. Bounds mean what they say in spite of what flash attention makes of them: it takes
// one of `keys` or more for none, and then none beside another bound for `keys`.
// `documents`: nullptr, or of each sample.
MESHWRIGHT_API std::vector<AttentionBlock> cut_attention(const RowRun& rows, const RowRun& keys,
                                                         int64_t samples, int64_t window,
                                                         const DocumentStarts* documents);

// LibTorch's attention operators behind one interface: a block of queries over a block of keys,
// with the logarithm of the sum of exponentials of each row, from which backward computes.

// query [batch, rows, heads, head_dim]; key and value [batch, keys, kv_heads, head_dim].
struct AttentionCall {
  at::Tensor query, key, value;
  double scale = 1;
  AttentionBand band = {};
  std::vector<int64_t> documents = {};  // as in AttentionBlock
};
// out as query, in its dtype; lse [batch, heads, rows] in the compute type.
struct AttentionResult {
  at::Tensor out, lse;
};
// In the dtype of the tensors that they belong to, or in the compute type.
struct AttentionGradients {
  at::Tensor query, key, value;
};

// Thread-safe. Operators need every row to see a key.
class MESHWRIGHT_API AttentionOperators {
 public:
  virtual ~AttentionOperators();
  virtual AttentionResult forward(const AttentionCall& call) const = 0;
  // Of the call's keys. `result`: of the rows over all keys, of which these may be some.
  virtual AttentionGradients backward(const AttentionCall& call, const AttentionResult& result,
                                      const at::Tensor& grad) const = 0;
};

// Those for tensors like this one. nullptr: none, as for the CPU, which has a kernel of its own.
// float16 and bfloat16: cuDNN's attention where LibTorch prefers it, and flash attention for what
// that is not for, on devices that have them; float32 and what flash attention refuses:
// memory-efficient attention (CUTLASS), whose heads are written out for groups of queries.
const AttentionOperators* attention_operators(const at::Tensor& query);
// LibTorch's for the CPU, with a mask for every band but a plain causal one: what tests run.
MESHWRIGHT_API const AttentionOperators& cpu_attention_operators();
// Those for all tensors, in tests; nullptr: as above.
MESHWRIGHT_API void set_attention_operators(const AttentionOperators* operators);

// Attention over queries and keys in parts (attention_parts.h) by calls of LibTorch's operators:
// blocks of rows and keys, whose outputs are merged by their lse, and whose gradients add up.

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
