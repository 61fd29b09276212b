// The product of few rows for one target. few_rows.cpp includes this once for each, with
//   MESHWRIGHT_FEW_ROWS_TARGET      its namespace
//   MESHWRIGHT_FEW_ROWS_ATTRIBUTES  of its functions
//   MESHWRIGHT_FEW_ROWS_BYTES       of a vector
//   MESHWRIGHT_FEW_ROWS_COLUMNS     how many, times four rows, have their sums in registers
// and this undefines them. Includes stand in few_rows.cpp.

#define FEW_ROWS MESHWRIGHT_FEW_ROWS_ATTRIBUTES
#define FEW_ROWS_INLINE FEW_ROWS __attribute__((always_inline)) inline

namespace meshwright::detail::few_rows::MESHWRIGHT_FEW_ROWS_TARGET {
namespace {

using Lanes = float __attribute__((vector_size(MESHWRIGHT_FEW_ROWS_BYTES)));
using Loose = float __attribute__((vector_size(MESHWRIGHT_FEW_ROWS_BYTES), aligned(4), may_alias));
using Halves = uint16_t __attribute__((vector_size(MESHWRIGHT_FEW_ROWS_BYTES / 2)));
using Words = uint32_t __attribute__((vector_size(MESHWRIGHT_FEW_ROWS_BYTES)));
constexpr int64_t kLanes = MESHWRIGHT_FEW_ROWS_BYTES / 4;
static_assert(kPadding % kLanes == 0);

FEW_ROWS_INLINE Lanes load(const float* from) { return *reinterpret_cast<const Loose*>(from); }
FEW_ROWS_INLINE Lanes load(const c10::BFloat16* from) {
  Halves bits;
  __builtin_memcpy(&bits, from, sizeof bits);
  return __builtin_bit_cast(Lanes, __builtin_convertvector(bits, Words) << 16);
}

template <int kRows, int kColumns>
FEW_ROWS_INLINE void add_products(Lanes (&sums)[kRows][kColumns], const float* x, int64_t row,
                                  const Lanes (&w)[kColumns]) {
  for (int r = 0; r < kRows; ++r) {
    const Lanes values = load(x + r * row);
    for (int c = 0; c < kColumns; ++c) sums[r][c] += values * w[c];
  }
}

// Rows row, row + 1, ... of x times kColumns rows of the weight from `column`. What lies kAhead
// rows on is fetched meanwhile.
template <int kRows, int kColumns, int kAhead, class T>
FEW_ROWS_INLINE void tile(const Product<T>& p, int64_t row, int64_t column) {
  Lanes sums[kRows][kColumns] = {};
  const float* x = p.x + row * p.padded;
  const T* weight = p.weight + column * p.row;
  const int64_t whole = p.k / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    Lanes w[kColumns];
    for (int c = 0; c < kColumns; ++c) {
      w[c] = load(weight + c * p.row + i);
      if (kAhead > 0) __builtin_prefetch(weight + (c + kAhead) * p.row + i);
    }
    add_products(sums, x + i, p.padded, w);
  }
  if (whole < p.k) {
    Lanes w[kColumns];
    for (int c = 0; c < kColumns; ++c) {
      T rest[kLanes] = {};
      for (int64_t i = whole; i < p.k; ++i) rest[i - whole] = weight[c * p.row + i];
      w[c] = load(rest);
    }
    add_products(sums, x + whole, p.padded, w);
  }
  for (int r = 0; r < kRows; ++r)
    for (int c = 0; c < kColumns; ++c) {
      float sum = p.bias == nullptr ? 0.0F : static_cast<float>(p.bias[column + c]);
      float half[kLanes];
      *reinterpret_cast<Loose*>(half) = sums[r][c];
      for (int64_t size = kLanes / 2; size > 0; size /= 2)
        for (int64_t l = 0; l < size; ++l) half[l] += half[l + size];
      p.out[(row + r) * p.n + column + c] = static_cast<T>(half[0] + sum);
    }
}

// All rows of x times kColumns rows of the weight from `column`, which the caches hold after the
// first of them.
template <int kColumns, class T>
FEW_ROWS_INLINE void all_rows(const Product<T>& p, int64_t column) {
  constexpr int kStrip =
      kColumns < MESHWRIGHT_FEW_ROWS_COLUMNS ? kColumns : MESHWRIGHT_FEW_ROWS_COLUMNS;
  int64_t row = 0;
  for (; row + 4 <= p.m; row += 4)
    for (int c = 0; c < kColumns; c += kStrip) {
      if (row == 0)
        tile<4, kStrip, kColumns>(p, row, column + c);
      else
        tile<4, kStrip, 0>(p, row, column + c);
    }
  for (; row + 2 <= p.m; row += 2) tile<2, kColumns, kColumns>(p, row, column);
  for (; row < p.m; ++row) tile<1, kColumns, kColumns>(p, row, column);
}

}  // namespace

// Columns [begin, end) of the result.
template <class T>
FEW_ROWS void columns(const Product<T>& p, int64_t begin, int64_t end) {
  int64_t column = begin;
  if (p.m == 1)
    for (; column + 8 <= end; column += 8) tile<1, 8, 8>(p, 0, column);
  for (; column + 4 <= end; column += 4) all_rows<4>(p, column);
  for (; column < end; ++column) all_rows<1>(p, column);
}

}  // namespace meshwright::detail::few_rows::MESHWRIGHT_FEW_ROWS_TARGET

#undef FEW_ROWS
#undef FEW_ROWS_INLINE
#undef MESHWRIGHT_FEW_ROWS_TARGET
#undef MESHWRIGHT_FEW_ROWS_ATTRIBUTES
#undef MESHWRIGHT_FEW_ROWS_BYTES
#undef MESHWRIGHT_FEW_ROWS_COLUMNS
