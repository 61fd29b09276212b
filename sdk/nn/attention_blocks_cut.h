// Attention over rows and keys at given positions, cut into blocks that one call of LibTorch's
// attention operators computes: without a mask tensor, and no row without a key. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "meshwright/export.h"
#include "meshwright/parallel/context_split.h"

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

}  // namespace meshwright::detail
