// What rows_fuzz finds in samples, and what it should find.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "meshwright/data/dataset_inspector.h"
#include "meshwright/data/dataset_kind.h"
#include "meshwright/error.h"

namespace meshwright::fuzz {

inline void check(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

// Whether it says that an input is wrong.
inline bool is_refusal(const Error& error) {
  const int hundreds = static_cast<int>(error.code()) / 100;
  return hundreds == 2 || hundreds == 7;
}

// Tokens with their targets.
using Positions = std::vector<std::pair<int64_t, int64_t>>;
using Packs = std::vector<std::vector<Positions>>;

// The documents of each sample, without what pads it; where samples have no documents, each is one,
// padding included. Throws std::runtime_error for what no data set may do. `vocab` 0: not known.
Packs read_all(const SampleSource& source, int64_t seq_len, int64_t vocab);

// What rows must become, by `dataset show` of each.
struct Expected {
  std::vector<Positions> documents;  // those used
  int64_t truncated = 0, too_long = 0, without = 0, positions = 0, targets = 0, longest = 0,
          largest_id = -1;
  void add(const DatasetRow& row, int64_t seq_len, const std::string& truncate);
};

// Throws std::runtime_error where a pack could have been spared by the rule of `packing`.
void check_packs(const Packs& packs, const std::string& packing, size_t room);

}  // namespace meshwright::fuzz
