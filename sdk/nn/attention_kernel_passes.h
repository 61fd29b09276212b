// Forward and backward of one key-value head. Included as attention_kernel_lanes.h is.

constexpr int64_t kCacheBytes = 768 << 10;  // what a pass may hold of the second-level cache

// One block of keys, packed. Columns that are not given are zeros.
template <class T>
struct PackedKeys {
  using C = AttentionCompute<T>;
  C *keys, *values;      // [kKeys, head_dim]
  C *keys_t, *values_t;  // [head_dim, kKeys]
  C* gaps;               // 0, or -inf where a column is not given
  int32_t* ids;          // documents of the columns
};

template <class T>
using Which = HeadView<const T> KeyRun<T>::*;
// A block's rows as numbers, or as factors of scores.
template <bool factors, class T>
ATTENTION_KERNEL void pack_rows(const KeyBlock& b, std::span<const KeyRun<T>> runs, Which<T> which,
                                int64_t size, AttentionCompute<T>* to, int64_t to_row) {
  using C = AttentionCompute<T>;
  int64_t next = 0;
  for (size_t r = b.run; r <= b.last_run; ++r) {
    Piece p = piece_of(b, runs[r]);
    std::fill(to + next * to_row, to + p.column * to_row, C{0});
    const HeadView<const T>& rows = runs[r].*which;
    const T* from = rows.data + p.row * rows.row;
    C* first = to + p.column * to_row;
    if constexpr (factors)
      load_factors(from, rows.row, p.count, size, C{1}, first, to_row);
    else
      load_rows(from, rows.row, p.count, size, padded<C>(size), C{1}, first, to_row);
    next = p.column + p.count;
  }
  std::fill(to + next * to_row, to + kKeys * to_row, C{0});
}
// Factors of scores [kKeys, depth], turned over to [depth, kKeys] by way of `rows`.
template <class T>
ATTENTION_KERNEL void pack_transposed(const KeyBlock& b, std::span<const KeyRun<T>> runs,
                                      Which<T> which, int64_t size, AttentionCompute<T>* rows,
                                      int64_t row, AttentionCompute<T>* to, int64_t to_row) {
  pack_rows<true>(b, runs, which, size, rows, row);
  transpose(rows, row, padded<AttentionCompute<T>>(depth_of<T>(size)), to, to_row);
}

template <class T>
ATTENTION_KERNEL void pack_columns(const KeyBlock& b, std::span<const KeyRun<T>> runs,
                                   const PackedKeys<T>& to) {
  using C = AttentionCompute<T>;
  block_documents(b, runs, to.ids);
  if (!b.gaps) return;
  std::fill(to.gaps, to.gaps + kKeys, -kInfinity<C>);
  for (size_t r = b.run; r <= b.last_run; ++r) {
    Piece p = piece_of(b, runs[r]);
    std::fill(to.gaps + p.column, to.gaps + p.column + p.count, C{0});
  }
}

// Sizes of rows in scratch.
template <class C>
struct Strides {
  int64_t wide, row, columns;  // head_dim in whole vectors; a row of that; a row of a block's keys
  explicit Strides(int64_t head_dim)
      : wide(padded<C>(head_dim)), row(spaced<C>(wide)), columns(spaced<C>(kKeys)) {}
};

template <class T>
class Forward {
  using C = AttentionCompute<T>;
  using Queries = std::span<const QueryRun<T>>;
  using Keys = std::span<const KeyRun<T>>;
  static constexpr int64_t L = kLanes<C>;

 public:
  ATTENTION_KERNEL void run(const AttentionShape& shape, Queries queries, Keys keys) {
    cut_queries(queries, tiles_);
    cut_keys(keys, blocks_);
    // Enough rows at a time that packing keys for them is little beside their products.
    Strides<C> size(shape.head_dim);
    int64_t row_bytes = 2 * size.row * static_cast<int64_t>(sizeof(C)) * shape.group;
    size_t at_once = static_cast<size_t>(std::max<int64_t>(1, kCacheBytes / row_bytes / kRows));
    for (size_t first = 0; first < tiles_.size(); first += at_once)
      some_tiles(shape, queries, keys,
                 std::span(tiles_).subspan(first, std::min(at_once, tiles_.size() - first)));
  }

 private:
  struct Head {  // a tile of one query head
    C *query, *out;
    Softmax<C> softmax;
  };

  ATTENTION_KERNEL void some_tiles(const AttentionShape& shape, Queries queries, Keys keys,
                                   std::span<const Tile> tiles) {
    Strides<C> size(shape.head_dim);
    lay_out(shape, size, static_cast<int64_t>(tiles.size()));
    for (size_t t = 0; t < tiles.size(); ++t) start(shape, size, queries, tiles[t], t);
    for (const KeyBlock& b : blocks_) {
      bool packed = false;
      for (size_t t = 0; t < tiles.size(); ++t) {
        if (!meets(shape, tiles[t], b)) continue;
        if (!packed) pack(shape, size, keys, b);
        packed = true;
        Seen seen;
        look(shape, tiles[t], b, packed_.ids, seen);
        if (seen.begin >= seen.end) continue;
        for (int64_t h = 0; h < shape.group; ++h)
          step(shape, size, seen, tiles[t].rows, b.gaps, head(shape, size, t, h));
      }
    }
    for (size_t t = 0; t < tiles.size(); ++t)
      for (int64_t h = 0; h < shape.group; ++h)
        finish(shape, size, queries[tiles[t].run], tiles[t], h, head(shape, size, t, h));
  }

  void lay_out(const AttentionShape& shape, const Strides<C>& size, int64_t tiles) {
    C* at = keys_.room(2 * kKeys * size.row + size.wide * size.columns + kKeys);
    packed_.keys = at, at += kKeys * size.row;
    packed_.values = at, at += kKeys * size.row;
    packed_.keys_t = at, at += size.wide * size.columns;
    packed_.gaps = at;
    packed_.ids = ids_;
    scores_.room(kRows * size.columns);
    state_.room(tiles * shape.group * head_size(size));
  }
  static int64_t head_size(const Strides<C>& size) { return kRows * (2 * size.row + L + 2); }
  Head head(const AttentionShape& shape, const Strides<C>& size, size_t tile, int64_t h) {
    C* at = state_.room(0) + (static_cast<int64_t>(tile) * shape.group + h) * head_size(size);
    C* after = at + 2 * kRows * size.row;
    return {at, at + kRows * size.row, {after + kRows * L, after, after + kRows * (L + 1)}};
  }

  ATTENTION_KERNEL void start(const AttentionShape& shape, const Strides<C>& size, Queries queries,
                              const Tile& tile, size_t t) {
    const HeadView<const T>& q = queries[tile.run].q;
    for (int64_t h = 0; h < shape.group; ++h) {
      Head to = head(shape, size, t, h);
      load_factors(q.data + h * q.head + tile.begin * q.row, q.row, tile.rows, shape.head_dim,
                   static_cast<C>(shape.scale * kLog2E), to.query, size.row);
      std::fill(to.out, to.out + kRows * size.row, C{0});
      std::fill(to.softmax.sums, to.softmax.sums + kRows * L, C{0});
      std::fill(to.softmax.top, to.softmax.top + kRows, -kInfinity<C>);
    }
  }

  ATTENTION_KERNEL void pack(const AttentionShape& shape, const Strides<C>& size, Keys keys,
                             const KeyBlock& b) {
    pack_transposed(b, keys, &KeyRun<T>::k, shape.head_dim, packed_.keys, size.row, packed_.keys_t,
                    size.columns);
    pack_rows<false>(b, keys, &KeyRun<T>::v, shape.head_dim, packed_.values, size.row);
    pack_columns(b, keys, packed_);
  }

  ATTENTION_KERNEL void step(const AttentionShape& shape, const Strides<C>& size, const Seen& seen,
                             int64_t rows, bool gaps, const Head& to) {
    C* scores = scores_.room(0);
    multiply_columns<kPairs<T>, C>(
        seen, {rows, kKeys, depth_of<T>(shape.head_dim), to.query, size.row, 1, packed_.keys_t,
               size.columns, scores, size.columns, Old::kDrop, nullptr,
               static_cast<C>(shape.scale * kLog2E)});
    soften<C>(seen, rows, gaps ? packed_.gaps : nullptr, scores, size.columns, to.softmax);
    multiply_depth<C>(seen, {rows, size.wide, kKeys, scores, size.columns, 1, packed_.values,
                             size.row, to.out, size.row, Old::kScale, to.softmax.factor});
  }

  ATTENTION_KERNEL void finish(const AttentionShape& shape, const Strides<C>& size,
                               const QueryRun<T>& run, const Tile& tile, int64_t h,
                               const Head& from) {
    for (int64_t r = 0; r < tile.rows; ++r) {
      C sum = 0;
      for (int64_t l = 0; l < L; ++l) sum += from.softmax.sums[r * L + l];
      bool none = from.softmax.top[r] == -kInfinity<C>;
      C factor = none ? C{0} : 1 / sum;
      int64_t row = tile.begin + r;
      const C* out = from.out + r * size.row;
      if (run.out.data != nullptr)
        store_row(out, factor, shape.head_dim, false,
                  run.out.data + h * run.out.head + row * run.out.row);
      if (run.partial.data != nullptr)
        store_row(out, factor, shape.head_dim, false,
                  run.partial.data + h * run.partial.head + row * run.partial.row);
      run.lse.data[h * run.lse.head + row] =
          none ? -kInfinity<C>
               : static_cast<C>((static_cast<double>(from.softmax.top[r]) +
                                 std::log2(static_cast<double>(sum))) *
                                kLn2);
    }
  }

  std::vector<Tile> tiles_;
  std::vector<KeyBlock> blocks_;
  Scratch<C> keys_, scores_, state_;
  PackedKeys<T> packed_{};
  int32_t ids_[kKeys];
};

template <class T>
class Backward {
  using C = AttentionCompute<T>;
  using Queries = std::span<const QueryRun<T>>;
  using Keys = std::span<const KeyRun<T>>;

 public:
  ATTENTION_KERNEL void run(const AttentionShape& shape, Queries queries, Keys keys) {
    cut_queries(queries, tiles_);
    cut_keys(keys, blocks_);
    written_.assign(tiles_.size(), 0);
    Strides<C> size(shape.head_dim);
    lay_out(size);
    for (size_t first = 0; first < blocks_.size(); first += at_once_)
      some_blocks(shape, size, queries, keys,
                  std::span(blocks_).subspan(first, std::min(at_once_, blocks_.size() - first)));
    for (size_t t = 0; t < tiles_.size(); ++t) {  // those that no key was seen of
      const QueryRun<T>& run = queries[tiles_[t].run];
      if (written_[t] != 0 || !run.first) continue;
      for (int64_t h = 0; h < shape.group; ++h)
        for (int64_t r = tiles_[t].begin; r < tiles_[t].begin + tiles_[t].rows; ++r) {
          C* row = run.dq.data + h * run.dq.head + r * run.dq.row;
          std::fill(row, row + shape.head_dim, C{0});
        }
    }
  }

 private:
  struct Block {
    PackedKeys<T> packed;
    C *dk, *dv;  // [kKeys, head_dim]
    Seen seen;   // by the present tile
    bool met;    // by it
  };

  void lay_out(const Strides<C>& size) {
    int64_t rows = kKeys * size.row, columns = size.wide * size.columns;
    int64_t one = 3 * rows + 2 * columns + kKeys;
    at_once_ = static_cast<size_t>(
        std::max<int64_t>(1, kCacheBytes / (one * static_cast<int64_t>(sizeof(C)))));
    at_once_ = std::min(at_once_, std::max<size_t>(1, blocks_.size()));
    packed_.resize(at_once_);
    ids_.room(static_cast<int64_t>(at_once_) * kKeys);
    C* at = keys_.room(static_cast<int64_t>(at_once_) * one);
    for (size_t b = 0; b < at_once_; ++b, at += one) {
      packed_[b].packed = {at,
                           nullptr,
                           at + 3 * rows,
                           at + 3 * rows + columns,
                           at + 3 * rows + 2 * columns,
                           ids_.room(0) + static_cast<int64_t>(b) * kKeys};
      packed_[b].dk = at + rows, packed_[b].dv = at + 2 * rows;
    }
    rows = kRows * size.row;
    at = tile_.room((kPairs<T> ? 5 : 3) * rows + 2 * kRows * size.columns + 2 * kRows);
    query_ = at, at += rows;
    grad_ = at, at += rows;
    dq_ = at, at += rows;
    scores_ = at, at += kRows * size.columns;
    grads_ = at, at += kRows * size.columns;
    lse_ = at, delta_ = at + kRows, at += 2 * kRows;
    query_factors_ = kPairs<T> ? at : query_;
    grad_factors_ = kPairs<T> ? at + rows : grad_;
  }

  ATTENTION_KERNEL void some_blocks(const AttentionShape& shape, const Strides<C>& size,
                                    Queries queries, Keys keys, std::span<const KeyBlock> blocks) {
    for (size_t b = 0; b < blocks.size(); ++b) pack(shape, size, keys, blocks[b], packed_[b]);
    for (size_t t = 0; t < tiles_.size(); ++t) {
      const Tile& tile = tiles_[t];
      bool any = false;
      for (size_t b = 0; b < blocks.size(); ++b) {
        Block& to = packed_[b];
        to.met = meets(shape, tile, blocks[b]);
        if (!to.met) continue;
        look(shape, tile, blocks[b], to.packed.ids, to.seen);
        to.met = to.seen.begin < to.seen.end;
        any = any || to.met;
      }
      if (!any) continue;
      const QueryRun<T>& run = queries[tile.run];
      for (int64_t h = 0; h < shape.group; ++h) {
        load(shape, size, run, tile, h);
        Old old = Old::kDrop;
        for (size_t b = 0; b < blocks.size(); ++b) {
          if (!packed_[b].met) continue;
          step(shape, size, tile.rows, blocks[b].gaps, packed_[b], old);
          old = Old::kAdd;
        }
        for (int64_t r = 0; r < tile.rows; ++r)
          store_row(dq_ + r * size.row, static_cast<C>(shape.scale), shape.head_dim,
                    !run.first || written_[t] != 0,
                    run.dq.data + h * run.dq.head + (tile.begin + r) * run.dq.row);
      }
      written_[t] = 1;
    }
    for (size_t b = 0; b < blocks.size(); ++b) give(shape, size, keys, blocks[b], packed_[b]);
  }

  ATTENTION_KERNEL void pack(const AttentionShape& shape, const Strides<C>& size, Keys keys,
                             const KeyBlock& b, Block& to) {
    // dk's place holds the values until they are transposed.
    pack_transposed(b, keys, &KeyRun<T>::v, shape.head_dim, to.dk, size.row, to.packed.values_t,
                    size.columns);
    pack_transposed(b, keys, &KeyRun<T>::k, shape.head_dim, to.packed.keys, size.row,
                    to.packed.keys_t, size.columns);
    if constexpr (kPairs<T>)
      pack_rows<false>(b, keys, &KeyRun<T>::k, shape.head_dim, to.packed.keys, size.row);
    std::fill(to.dk, to.dk + kKeys * size.row, C{0});
    std::fill(to.dv, to.dv + kKeys * size.row, C{0});
    pack_columns(b, keys, to.packed);
  }

  ATTENTION_KERNEL void load(const AttentionShape& shape, const Strides<C>& size,
                             const QueryRun<T>& run, const Tile& tile, int64_t h) {
    load_rows(run.q.data + h * run.q.head + tile.begin * run.q.row, run.q.row, tile.rows,
              shape.head_dim, size.wide, static_cast<C>(shape.scale * kLog2E), query_, size.row);
    load_rows(run.grad.data + h * run.grad.head + tile.begin * run.grad.row, run.grad.row,
              tile.rows, shape.head_dim, size.wide, C{1}, grad_, size.row);
    if constexpr (kPairs<T>) {
      load_factors(run.q.data + h * run.q.head + tile.begin * run.q.row, run.q.row, tile.rows,
                   shape.head_dim, C{1}, query_factors_, size.row);
      load_factors(run.grad.data + h * run.grad.head + tile.begin * run.grad.row, run.grad.row,
                   tile.rows, shape.head_dim, C{1}, grad_factors_, size.row);
    }
    for (int64_t r = 0; r < tile.rows; ++r) {
      C lse = run.lse.data[h * run.lse.head + tile.begin + r];
      lse_[r] = lse == -kInfinity<C> ? kInfinity<C> : lse * static_cast<C>(kLog2E);
      delta_[r] = run.delta.data[h * run.delta.head + tile.begin + r];
    }
  }

  ATTENTION_KERNEL void step(const AttentionShape& shape, const Strides<C>& size, int64_t rows,
                             bool gaps, const Block& b, Old old) {
    int64_t depth = depth_of<T>(shape.head_dim);
    multiply_columns<kPairs<T>, C>(
        b.seen, {rows, kKeys, depth, query_factors_, size.row, 1, b.packed.keys_t, size.columns,
                 scores_, size.columns, Old::kDrop, nullptr, static_cast<C>(shape.scale * kLog2E)});
    multiply_columns<kPairs<T>, C>(b.seen, {rows, kKeys, depth, grad_factors_, size.row, 1,
                                            b.packed.values_t, size.columns, grads_, size.columns});
    differentiate<C>(b.seen, rows, gaps ? b.packed.gaps : nullptr, scores_, grads_, size.columns,
                     lse_, delta_);
    multiply_rows<C>(b.seen, {kKeys, size.wide, rows, scores_, 1, size.columns, grad_, size.row,
                              b.dv, size.row, Old::kAdd});
    multiply_rows<C>(b.seen, {kKeys, size.wide, rows, grads_, 1, size.columns, query_, size.row,
                              b.dk, size.row, Old::kAdd});
    if (old == Old::kDrop) std::fill(dq_, dq_ + rows * size.row, C{0});
    multiply_depth<C>(b.seen, {rows, size.wide, kKeys, grads_, size.columns, 1, b.packed.keys,
                               size.row, dq_, size.row, Old::kAdd});
  }

  // Gradients of keys and values to the runs. dk is of queries times scale / ln 2.
  ATTENTION_KERNEL void give(const AttentionShape& shape, const Strides<C>& size, Keys keys,
                             const KeyBlock& block, const Block& from) {
    for (size_t r = block.run; r <= block.last_run; ++r) {
      const KeyRun<T>& run = keys[r];
      Piece p = piece_of(block, run);
      for (int64_t i = 0; i < p.count; ++i) {
        int64_t row = (p.column + i) * size.row, to = p.row + i;
        store_row(from.dk + row, static_cast<C>(kLn2), shape.head_dim, !run.first,
                  run.dk.data + to * run.dk.row);
        store_row(from.dv + row, C{1}, shape.head_dim, !run.first, run.dv.data + to * run.dv.row);
      }
    }
  }

  std::vector<Tile> tiles_;
  std::vector<KeyBlock> blocks_;
  std::vector<Block> packed_;
  std::vector<char> written_;
  size_t at_once_ = 1;
  Scratch<C> keys_, tile_;
  Scratch<int32_t> ids_;
  C *query_ = nullptr, *grad_ = nullptr, *query_factors_ = nullptr, *grad_factors_ = nullptr,
    *dq_ = nullptr, *scores_ = nullptr, *grads_ = nullptr, *lse_ = nullptr, *delta_ = nullptr;
};
