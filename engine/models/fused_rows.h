// Where the rows of a fused weight lie in memory and checkpoints (interleaved, see FusedRows), and
// where in Hugging Face's files.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "meshwright/outline.h"

namespace meshwright::weights {

// Far above the key-value heads of any model: what is read out of order stays a bounded number of
// reads.
inline constexpr int64_t kMostFusedGroups = 4096;

// Rows that follow each other in both.
struct RowRun {
  int64_t memory = 0, file = 0, count = 0;
};
// The runs that make up rows [begin, end) of memory, in the order of memory, or of the file, in its
// order.
std::vector<RowRun> runs_of_memory(const FusedRows& fused, int64_t begin, int64_t end);
std::vector<RowRun> runs_of_file(const FusedRows& fused, int64_t begin, int64_t end);

// For the flattened tensor: elements in place of rows. `shape`: of the tensor.
FusedRows fused_elements(const FusedRows& fused, std::span<const int64_t> shape);
// Whether the groups make up a tensor of that shape.
bool fits(const FusedRows& fused, std::span<const int64_t> shape);

}  // namespace meshwright::weights
