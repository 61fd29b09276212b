// How an attention kernel cuts its work: tiles of query rows, blocks of keys aligned to global
// positions, and which keys of a block the rows of a tile see.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "attention_kernel.h"

namespace meshwright::attention {

constexpr int64_t kKeys = 64;  // keys of a block
constexpr int64_t kRows = 64;  // query rows of a tile

// Memory that grows and stays, for vectors of any target.
template <class C>
class Scratch {
 public:
  C* room(int64_t size) {
    if (size > size_) {
      memory_.reset(static_cast<C*>(
          ::operator new(static_cast<size_t>(size) * sizeof(C), std::align_val_t{kAlignment})));
      size_ = size;
    }
    return memory_.get();
  }

 private:
  static constexpr size_t kAlignment = 64;
  struct Free {
    void operator()(C* memory) const {
      ::operator delete(static_cast<void*>(memory), std::align_val_t{kAlignment});
    }
  };
  std::unique_ptr<C, Free> memory_;
  int64_t size_ = 0;
};

struct Documents {
  int32_t least = std::numeric_limits<int32_t>::max(), most = std::numeric_limits<int32_t>::min();
  void add(const int32_t* ids, int64_t begin, int64_t end) {  // ids ascend
    least = std::min(least, ids == nullptr ? 0 : ids[begin]);
    most = std::max(most, ids == nullptr ? 0 : ids[end - 1]);
  }
};

// Query rows [begin, begin + rows) of a run.
struct Tile {
  size_t run = 0;
  int64_t begin = 0, rows = 0, position = 0;
  const int32_t* ids = nullptr;
  Documents documents;
};

template <class T>
void cut_queries(std::span<const QueryRun<T>> runs, std::vector<Tile>& tiles) {
  tiles.clear();
  for (size_t r = 0; r < runs.size(); ++r)
    for (int64_t begin = 0; begin < runs[r].count; begin += kRows) {
      const int32_t* ids = runs[r].documents;
      Tile t{r,
             begin,
             std::min(kRows, runs[r].count - begin),
             runs[r].position + begin,
             ids == nullptr ? nullptr : ids + begin,
             {}};
      t.documents.add(t.ids, 0, t.rows);
      tiles.push_back(t);
    }
}

// Keys [position, position + kKeys), of which columns from `begin` to `end` are given, by runs
// [run, last_run].
struct KeyBlock {
  int64_t position = 0, begin = 0, end = 0;
  size_t run = 0, last_run = 0;
  bool gaps = false;  // between begin and end
  Documents documents;
};

// The part of a block that one run gives.
struct Piece {
  int64_t column, row, count;  // first column of the block, first row of the run
};
template <class T>
Piece piece_of(const KeyBlock& b, const KeyRun<T>& run) {
  int64_t from = std::max(b.position, run.position),
          to = std::min(b.position + kKeys, run.position + run.count);
  return {from - b.position, from - run.position, to - from};
}

template <class T>
void cut_keys(std::span<const KeyRun<T>> runs, std::vector<KeyBlock>& blocks) {
  blocks.clear();
  for (size_t r = 0; r < runs.size(); ++r) {
    int64_t end = runs[r].position + runs[r].count;
    for (int64_t at = runs[r].position; at < end;) {
      int64_t position = at / kKeys * kKeys;
      if (blocks.empty() || blocks.back().position != position)
        blocks.push_back({position, at - position, at - position, r, r, false, {}});
      KeyBlock& b = blocks.back();
      Piece p = piece_of(b, runs[r]);
      b.gaps = b.gaps || p.column != b.end;
      b.end = p.column + p.count;
      b.last_run = r;
      b.documents.add(runs[r].documents, p.row, p.row + p.count);
      at += p.count;
    }
  }
}

// False only if no row of the tile sees a key of the block.
inline bool meets(const AttentionShape& s, const Tile& t, const KeyBlock& b) {
  int64_t first = b.position + b.begin, last = b.position + b.end - 1;
  if (s.causal && first > t.position + t.rows - 1) return false;
  if (s.window > 0 && last <= t.position - s.window) return false;
  return t.documents.most >= b.documents.least && t.documents.least <= b.documents.most;
}

// Columns of a block that each row of a tile sees; begin and end are all rows' together.
struct Seen {
  int32_t from[kRows], to[kRows];  // not set if `all`
  int64_t begin, end;
  bool all;  // every row sees every column of the block
};

// `ids`: the documents of the block's columns, ascending; read only if the tile or the block has
// more than one.
inline void look(const AttentionShape& s, const Tile& t, const KeyBlock& b, const int32_t* ids,
                 Seen& seen) {
  bool split = t.documents.least != t.documents.most || b.documents.least != b.documents.most;
  int64_t ahead = t.position - b.position;
  seen.all = !split && !b.gaps && b.begin == 0 && b.end == kKeys &&
             (!s.causal || ahead + 1 >= kKeys) && (s.window == 0 || ahead + t.rows <= s.window);
  seen.begin = seen.all ? 0 : kKeys, seen.end = seen.all ? kKeys : 0;
  if (seen.all) return;
  for (int64_t r = 0; r < t.rows; ++r) {
    int64_t from = b.begin, to = b.end;
    if (s.causal) to = std::min(to, ahead + r + 1);
    if (s.window > 0) from = std::max(from, ahead + r - s.window + 1);
    if (split) {
      int32_t id = t.ids == nullptr ? 0 : t.ids[r];
      from = std::max(from, std::lower_bound(ids + b.begin, ids + b.end, id) - ids);
      to = std::min(to, std::upper_bound(ids + b.begin, ids + b.end, id) - ids);
    }
    if (to <= from) from = to = std::clamp(from, b.begin, b.end);
    seen.from[r] = static_cast<int32_t>(from);
    seen.to[r] = static_cast<int32_t>(to);
    if (from < to) seen.begin = std::min(seen.begin, from), seen.end = std::max(seen.end, to);
  }
}

// Documents of a block's columns; gaps repeat the last one, so that they ascend.
template <class T>
void block_documents(const KeyBlock& b, std::span<const KeyRun<T>> runs, int32_t* ids) {
  std::fill(ids, ids + kKeys, b.documents.least);
  for (size_t r = b.run; r <= b.last_run; ++r) {
    Piece p = piece_of(b, runs[r]);
    for (int64_t i = 0; i < p.count; ++i)
      ids[p.column + i] = runs[r].documents == nullptr ? 0 : runs[r].documents[p.row + i];
    std::fill(ids + p.column + p.count, ids + kKeys, ids[p.column + p.count - 1]);
  }
}

}  // namespace meshwright::attention
