// LibTorch's attention operators behind one interface: a block of queries over a block of keys,
// with the logarithm of the sum of exponentials of each row, from which backward computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "attention_blocks_cut.h"
#include "meshwright/export.h"

namespace meshwright::detail {

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

}  // namespace meshwright::detail
