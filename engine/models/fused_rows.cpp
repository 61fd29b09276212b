#include "engine/models/fused_rows.h"

#include <algorithm>
#include <numeric>

namespace meshwright::weights {
namespace {

int64_t group_size(const FusedRows& fused) {
  return std::accumulate(fused.parts.begin(), fused.parts.end(), int64_t{0});
}

}  // namespace

std::vector<RowRun> runs_of_memory(const FusedRows& fused, int64_t begin, int64_t end) {
  std::vector<RowRun> out;
  int64_t group = group_size(fused);
  while (begin < end) {
    int64_t inside = begin % group, before = 0;  // rows of the parts before this one, in one group
    size_t part = 0;
    while (inside - before >= fused.parts[part]) before += fused.parts[part++];
    int64_t from = inside - before, count = std::min(fused.parts[part] - from, end - begin);
    out.push_back({begin, fused.groups * before + begin / group * fused.parts[part] + from, count});
    begin += count;
  }
  return out;
}

std::vector<RowRun> runs_of_file(const FusedRows& fused, int64_t begin, int64_t end) {
  std::vector<RowRun> out;
  int64_t group = group_size(fused);
  while (begin < end) {
    int64_t before = 0;
    size_t part = 0;
    while (begin >= fused.groups * (before + fused.parts[part])) before += fused.parts[part++];
    int64_t inside = begin - fused.groups * before, rows = fused.parts[part], from = inside % rows;
    int64_t count = std::min(rows - from, end - begin);
    out.push_back({inside / rows * group + before + from, begin, count});
    begin += count;
  }
  return out;
}

FusedRows fused_elements(const FusedRows& fused, std::span<const int64_t> shape) {
  int64_t width = 1;
  for (size_t d = 1; d < shape.size(); ++d) width *= shape[d];
  FusedRows out = fused;
  for (int64_t& rows : out.parts) rows *= width;
  return out;
}

bool fits(const FusedRows& fused, std::span<const int64_t> shape) {
  if (shape.empty() || fused.groups < 1 || fused.parts.empty() || shape[0] % fused.groups != 0)
    return false;
  int64_t left = shape[0] / fused.groups;
  for (int64_t rows : fused.parts) {
    if (rows < 1 || rows > left) return false;
    left -= rows;
  }
  return left == 0;
}

}  // namespace meshwright::weights
