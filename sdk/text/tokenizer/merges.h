// The merges of a BPE vocabulary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace meshwright::tokenizer {

// What two neighbours become, and which pairs come first.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank, id;
  };
  explicit MergeTable(size_t merges = 0);
  void set(uint32_t left, uint32_t right, Merge merge);  // a later one of the same pair replaces
  const Merge* find(uint32_t left, uint32_t right) const;
  void erase_results(const std::vector<bool>& ids);  // the merges to ids that are true

 private:
  struct Slot {
    uint64_t pair;
    Merge merge;
  };
  size_t place_of(uint64_t pair) const;
  std::vector<Slot> slots_;
  size_t mask_ = 0;
};

// Merges neighbours by rank, the leftmost of a rank first. `begins`, one of each id or none at all,
// stay beside them. n log n.
void merge(std::vector<uint32_t>& ids, std::vector<size_t>& begins, const MergeTable& merges);

}  // namespace meshwright::tokenizer
