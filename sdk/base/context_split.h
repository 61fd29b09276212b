// How the tokens of a sample lie on the ranks of cp (semantics 14.1). Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "meshwright/export.h"
#include "meshwright/region.h"

namespace meshwright {

// head_tail: 2 c chunks, of which rank r holds chunk r and then chunk 2 c - 1 - r, so that causal
// attention is the same work on every rank. contiguous: c chunks, one a rank.
enum class ContextBalance : uint8_t { head_tail, contiguous };

class MESHWRIGHT_API ContextSplit {
 public:
  // `length` positions on `ranks` ranks, padded until every chunk has equally many; one rank has
  // them as they are. Throws Error(internal) for a length or a number of ranks below 1.
  ContextSplit(int64_t length, int64_t ranks, ContextBalance balance = ContextBalance::head_tail);

  int64_t length() const { return length_; }            // without padding
  int64_t padded() const { return chunk_ * chunks(); }  // S'
  int64_t ranks() const { return ranks_; }
  ContextBalance balance() const { return balance_; }
  int64_t chunk() const { return chunk_; }  // positions of a chunk
  int64_t chunks() const { return per_rank() * ranks_; }
  int64_t per_rank() const { return balance_ == ContextBalance::head_tail ? 2 : 1; }
  int64_t rows() const { return chunk_ * per_rank(); }  // of a rank
  // The rank that holds a chunk, and where the chunk begins among its rows.
  int64_t rank_of(int64_t chunk) const;
  int64_t row_of(int64_t chunk) const;
  // The chunks of a rank, and their positions, in the order of its rows; padding included.
  std::vector<int64_t> chunks_of(int64_t rank) const;
  std::vector<PositionRun> runs_of(int64_t rank) const;
  // How many of a rank's rows are not padding.
  int64_t tokens_of(int64_t rank) const;
  // First chunk that a query of `chunk` sees under a sliding window; 0 without one (window 0).
  int64_t first_seen(int64_t chunk, int64_t window) const;
  // Whether a query of the rank sees some of `chunk`.
  bool sees(int64_t rank, int64_t chunk, int64_t window) const;

 private:
  int64_t length_, ranks_, chunk_;
  ContextBalance balance_;
};

}  // namespace meshwright
