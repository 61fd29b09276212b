// The loops of an attention kernel over a tile's scores of one block of keys. Included as
// attention_kernel_lanes.h is. Scores are in units of ln 2: queries are scaled by scale / ln 2.

constexpr double kLog2E = 1.44269504088896340736, kLn2 = 0.69314718055994530942;

template <class C>
constexpr C kInfinity = std::numeric_limits<C>::infinity();

// Elements from one row to the next. Rows at multiples of 512 bytes would share eight sets of a
// cache, so that a tile evicts itself.
template <class C>
int64_t spaced(int64_t size) {
  constexpr int64_t kAlias = 512 / static_cast<int64_t>(sizeof(C));
  return size % kAlias == 0 ? size + kLanes<C> : size;
}
template <class C>
int64_t padded(int64_t size) {
  return (size + kLanes<C> - 1) / kLanes<C> * kLanes<C>;
}

// Vectors of a row that it sees any of: columns [from, to).
struct Columns {
  int64_t from, to;
};
template <class C>
ATTENTION_KERNEL_INLINE Columns whole_vectors(const Seen& seen, int64_t row) {
  constexpr int64_t L = kLanes<C>;
  if (seen.all) return {0, kKeys};
  return {seen.from[row] / L * L, (seen.to[row] + L - 1) / L * L};
}
// Scores that the row does not see become -inf, in the vectors that it sees any of. Those between
// a row's first and last vector are seen whole unless the block has gaps, whose columns are -inf in
// `gaps`.
template <class C>
ATTENTION_KERNEL_INLINE void mask_vector(C* scores, int64_t at, int64_t from, int64_t to) {
  using Index = typename Vector<C>::Index;
  typename Vector<C>::Bits column;
  for (Index i = 0; i < kLanes<C>; ++i) column[i] = i;
  Index first = static_cast<Index>(from - at), end = static_cast<Index>(to - at);
  Lanes<C> x = load(scores + at);
  x = ((column >= first) & (column < end)) ? x : all_lanes(-kInfinity<C>);
  store(scores + at, x);
}
template <class C>
ATTENTION_KERNEL_INLINE void mask_row(C* scores, const Seen& seen, int64_t row, const C* gaps) {
  if (seen.all) return;
  Columns c = whole_vectors<C>(seen, row);
  if (c.from == c.to) return;
  int64_t from = seen.from[row], to = seen.to[row];
  if (gaps != nullptr)
    for (int64_t j = c.from; j < c.to; j += kLanes<C>)
      store(scores + j, load(scores + j) + load(gaps + j));
  if (from > c.from || c.to - c.from == kLanes<C>) mask_vector(scores, c.from, from, to);
  if (to < c.to) mask_vector(scores, c.to - kLanes<C>, from, to);
}

// Zeros in the other vectors that some row of the tile sees.
template <class C>
ATTENTION_KERNEL_INLINE void clear_unseen(const Seen& seen, Columns c, C* row) {
  constexpr int64_t L = kLanes<C>;
  for (int64_t j = seen.begin / L * L; j < c.from; j += L) store(row + j, Lanes<C>{});
  for (int64_t j = c.to; j < seen.end; j += L) store(row + j, Lanes<C>{});
}

// Products of which a tile sees a part of a block, strip by strip of rows. from and to of a tile's
// rows ascend, so that its first and last row bound what a strip sees.
constexpr int64_t kStrip = MESHWRIGHT_ATTENTION_STRIP;

// Queries times keys: columns that the strip sees.
template <bool pairs, class C>
ATTENTION_KERNEL void multiply_columns(const Seen& seen, Product<C> p) {
  if (seen.all) return multiply<pairs>(p);
  Product<C> strip = p;
  for (int64_t r = 0; r < p.rows; r += kStrip) {
    strip.rows = std::min(kStrip, p.rows - r);
    int64_t begin = seen.from[r] / kLanes<C> * kLanes<C>;
    strip.columns = padded<C>(seen.to[r + strip.rows - 1]) - begin;
    strip.a = p.a + r * p.a_row, strip.b = p.b + begin, strip.c = p.c + r * p.c_row + begin;
    multiply<pairs>(strip);
  }
}
// Weights of keys times rows of keys: the depth that the strip sees.
template <class C>
ATTENTION_KERNEL void multiply_depth(const Seen& seen, Product<C> p) {
  if (seen.all) return multiply(p);
  Product<C> strip = p;
  for (int64_t r = 0; r < p.rows; r += kStrip) {
    strip.rows = std::min(kStrip, p.rows - r);
    int64_t begin = seen.from[r];
    strip.depth = seen.to[r + strip.rows - 1] - begin;
    strip.a = p.a + r * p.a_row + begin * p.a_depth, strip.b = p.b + begin * p.b_row;
    strip.c = p.c + r * p.c_row;
    if (p.factors != nullptr) strip.factors = p.factors + r;
    multiply(strip);
  }
}
// Weights of queries, transposed, times rows of queries: those that see the strip.
template <class C>
ATTENTION_KERNEL void multiply_rows(const Seen& seen, Product<C> p) {
  if (seen.all) return multiply(p);
  Product<C> strip = p;
  int64_t first = 0, end = 0;
  for (int64_t j = seen.begin; j < seen.end; j += kStrip) {
    strip.rows = std::min(kStrip, seen.end - j);
    while (first < p.depth && seen.to[first] <= j) ++first;
    while (end < p.depth && seen.from[end] < j + strip.rows) ++end;
    strip.depth = end - first;
    strip.a = p.a + j * p.a_row + first * p.a_depth, strip.b = p.b + first * p.b_row;
    strip.c = p.c + j * p.c_row;
    if (strip.depth > 0) multiply(strip);
  }
}

// What a row of a tile carries from block to block.
template <class C>
struct Softmax {
  C* top;     // [kRows] largest score
  C* sums;    // [kRows, lanes] sum of 2^(score - top), lane by lane
  C* factor;  // [kRows] 2^(old top - top) of the last block
};

// Scores [rows, kKeys] to 2^(score - top), in columns [begin, end); 0 where a row does not see.
template <class C>
ATTENTION_KERNEL void soften(const Seen& seen, int64_t rows, const C* gaps, C* scores,
                             int64_t scores_row, const Softmax<C>& state) {
  constexpr int64_t L = kLanes<C>;
  alignas(64) C base[kRows];
  for (int64_t r = 0; r < rows; ++r) {
    C* row = scores + r * scores_row;
    mask_row(row, seen, r, gaps);
    Columns c = whole_vectors<C>(seen, r);
    Lanes<C> most = all_lanes(state.top[r]);
    for (int64_t j = c.from; j < c.to; j += L) most = larger<C>(load(row + j), most);
    base[r] = largest<C>(most);
  }
  for (int64_t r = rows; r < kRows; ++r) base[r] = state.top[r];
  for (int64_t r = 0; r < kRows; r += L) {
    Lanes<C> top = load(base + r), old = load(state.top + r);
    store(state.top + r, top);
    top = top == all_lanes(-kInfinity<C>) ? Lanes<C>{} : top;  // -inf - -inf is not a number
    store(base + r, top);
    store(state.factor + r, power_of_two(old - top));
  }
  for (int64_t r = 0; r < rows; ++r) {
    C* row = scores + r * scores_row;
    Columns c = whole_vectors<C>(seen, r);
    Lanes<C> top = all_lanes(base[r]), sum = load(state.sums + r * L) * state.factor[r];
#pragma GCC unroll 4
    for (int64_t j = c.from; j < c.to; j += L) {
      Lanes<C> p = power_of_two(load(row + j) - top);
      store(row + j, p);
      sum += p;
    }
    store(state.sums + r * L, sum);
    clear_unseen(seen, c, row);
  }
}

// Backward: scores to probabilities p = 2^(score - lse), their gradients g to those of the scores,
// p (g - delta). lse is in units of ln 2, and +inf where a row sees nothing.
template <class C>
ATTENTION_KERNEL void differentiate(const Seen& seen, int64_t rows, const C* gaps, C* scores,
                                    C* grads, int64_t scores_row, const C* lse, const C* delta) {
  constexpr int64_t L = kLanes<C>;
  for (int64_t r = 0; r < rows; ++r) {
    C *p_row = scores + r * scores_row, *g_row = grads + r * scores_row;
    mask_row(p_row, seen, r, gaps);
    Columns c = whole_vectors<C>(seen, r);
    Lanes<C> sum = all_lanes(lse[r]), mean = all_lanes(delta[r]);
#pragma GCC unroll 4
    for (int64_t j = c.from; j < c.to; j += L) {
      Lanes<C> p = power_of_two(load(p_row + j) - sum);
      store(p_row + j, p);
      store(g_row + j, p * (load(g_row + j) - mean));
    }
    clear_unseen(seen, c, p_row);
    clear_unseen(seen, c, g_row);
  }
}
