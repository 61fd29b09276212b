// Vectors of one target and the loops of an attention kernel over them. Included once for each
// target by attention_kernel_target.h, within its namespace: no include guard, no includes.
//
// All functions carry the target's attribute: code for a processor that is not there must not leak
// into functions that others share.

template <class C>
struct Vector;
template <>
struct Vector<float> {
  using Lanes = float __attribute__((vector_size(MESHWRIGHT_ATTENTION_BYTES)));
  using Loose =
      float __attribute__((vector_size(MESHWRIGHT_ATTENTION_BYTES), aligned(4), may_alias));
  using Index = int32_t;
  using Bits = int32_t __attribute__((vector_size(MESHWRIGHT_ATTENTION_BYTES)));
  using Halves = uint16_t __attribute__((vector_size(MESHWRIGHT_ATTENTION_BYTES / 2)));
  using Words = uint32_t __attribute__((vector_size(MESHWRIGHT_ATTENTION_BYTES)));
};
template <>
struct Vector<double> {
  using Lanes = double __attribute__((vector_size(MESHWRIGHT_ATTENTION_BYTES)));
  using Loose =
      double __attribute__((vector_size(MESHWRIGHT_ATTENTION_BYTES), aligned(8), may_alias));
  using Index = int64_t;
  using Bits = int64_t __attribute__((vector_size(MESHWRIGHT_ATTENTION_BYTES)));
};
template <class C>
using Lanes = typename Vector<C>::Lanes;
template <class C>
constexpr int64_t kLanes = MESHWRIGHT_ATTENTION_BYTES / static_cast<int64_t>(sizeof(C));

template <class C>
ATTENTION_KERNEL_INLINE Lanes<C> load(const C* from) {
  return *reinterpret_cast<const typename Vector<C>::Loose*>(from);
}
template <class C>
ATTENTION_KERNEL_INLINE void store(C* to, Lanes<C> x) {
  *reinterpret_cast<typename Vector<C>::Loose*>(to) = x;
}
template <class C>
ATTENTION_KERNEL_INLINE Lanes<C> all_lanes(C x) {
  return Lanes<C>{} + x;
}
template <class C>
ATTENTION_KERNEL_INLINE Lanes<C> larger(Lanes<C> a, Lanes<C> b) {
  return a > b ? a : b;
}
ATTENTION_KERNEL_INLINE Lanes<float> load_as(const float* from) { return load(from); }
ATTENTION_KERNEL_INLINE Lanes<double> load_as(const double* from) { return load(from); }
ATTENTION_KERNEL_INLINE Lanes<float> load_as(const c10::BFloat16* from) {
  Vector<float>::Halves bits;
  __builtin_memcpy(&bits, from, sizeof bits);
  Vector<float>::Words words = __builtin_convertvector(bits, Vector<float>::Words) << 16;
  return __builtin_bit_cast(Lanes<float>, words);
}

// 2^x: 0 where the result would not be a normal number, NaN of NaN; x at most 126. Of n + r with
// |r| <= 1/2 a polynomial gives 2^r; n ends up in the low bits of x + 1.5 * 2^(mantissa bits).
ATTENTION_KERNEL_INLINE Lanes<float> power_of_two(Lanes<float> x) {
  Lanes<float> shifted = x + 12582912.0F, r = x - (shifted - 12582912.0F);
  Lanes<float> p = 1.535336188319500e-4F * r + 1.339887440266574e-3F;
  p = p * r + 9.618437357674640e-3F;
  p = p * r + 5.550332471162809e-2F;
  p = p * r + 2.402264791363012e-1F;
  p = p * r + 6.931472028550421e-1F;
  p = p * r + 1.0F;
  using Bits = Vector<float>::Bits;
  Bits y = __builtin_bit_cast(Bits, p) + (__builtin_bit_cast(Bits, shifted) << 23);
  return x < -125.0F ? Lanes<float>{} : __builtin_bit_cast(Lanes<float>, y);
}
ATTENTION_KERNEL_INLINE Lanes<double> power_of_two(Lanes<double> x) {
  constexpr double kShift = 6755399441055744.0, kLn2 = 0.69314718055994530942;
  Lanes<double> shifted = x + kShift, r = (x - (shifted - kShift)) * kLn2;
  Lanes<double> p = r * (1.0 / 6227020800.0) + 1.0 / 479001600.0;
  constexpr double kInverse[] = {
      1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0, 1.0 / 5040.0, 1.0 / 720.0,
      1.0 / 120.0,      1.0 / 24.0,      1.0 / 6.0,      0.5,           1.0,          1.0};
#pragma GCC unroll 12
  for (double c : kInverse) p = p * r + c;
  using Bits = Vector<double>::Bits;
  Bits y = __builtin_bit_cast(Bits, p) + (__builtin_bit_cast(Bits, shifted) << 52);
  return x < -1020.0 ? Lanes<double>{} : __builtin_bit_cast(Lanes<double>, y);
}

template <class C>
ATTENTION_KERNEL_INLINE C largest(Lanes<C> x) {
  C lanes[kLanes<C>];
  store(lanes, x);
  for (int64_t half = kLanes<C> / 2; half > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i)
      lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
  return lanes[0];
}

// sum + left * right; of pairs, each element is two bfloat16 numbers and the product their dot
// product, which is a float's as exactly.
template <bool pairs, class C>
ATTENTION_KERNEL_INLINE Lanes<C> multiply_add(Lanes<C> sum, const C* left, Lanes<C> right) {
#if MESHWRIGHT_ATTENTION_PAIRS
  if constexpr (pairs) {
    typename Vector<C>::Index bits;
    __builtin_memcpy(&bits, left, sizeof bits);
    return _mm512_dpbf16_ps(sum, __builtin_bit_cast(__m512bh, typename Vector<C>::Bits{} + bits),
                            __builtin_bit_cast(__m512bh, right));
  }
#endif
  return sum + *left * right;
}

// What a product does with the rows that it finds.
enum class Old { kDrop, kAdd, kScale };

template <class C>
struct Product {
  int64_t rows, columns, depth;  // columns: a multiple of the lanes
  const C* a;
  int64_t a_row, a_depth;
  const C* b;
  int64_t b_row;
  C* c;
  int64_t c_row;
  Old old = Old::kDrop;
  const C* factors = nullptr;  // of the old rows, for kScale
  C scale = 1;                 // of a product of pairs
};

// c[R, W lanes] = a[R, depth] b[depth, W lanes] + old. Each element is summed in the order of
// depth, by one multiply-add a step, whatever R and W are: bits of a row do not depend on them.
template <bool pairs, class C, int R, int W>
ATTENTION_KERNEL_INLINE void product_tile(const Product<C>& p, int64_t row, int64_t column) {
  constexpr int64_t L = kLanes<C>;
  C* c = p.c + row * p.c_row + column;
  Lanes<C> sum[R][W];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int w = 0; w < W; ++w) sum[r][w] = Lanes<C>{};
  if (p.old != Old::kDrop)
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      C factor = p.old == Old::kScale ? p.factors[row + r] : C{1};
#pragma GCC unroll 4
      for (int w = 0; w < W; ++w) sum[r][w] = load(c + r * p.c_row + w * L) * factor;
    }
  const C *a = p.a + row * p.a_row, *b = p.b + column;
  int64_t a_row = p.a_row, a_depth = p.a_depth, b_row = p.b_row;
  for (int64_t k = p.depth; k > 0; --k) {
    Lanes<C> right[W];
#pragma GCC unroll 4
    for (int w = 0; w < W; ++w) right[w] = load(b + w * L);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int w = 0; w < W; ++w)
        sum[r][w] = multiply_add<pairs>(sum[r][w], a + r * a_row, right[w]);
    }
    a += a_depth;
    b += b_row;
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int w = 0; w < W; ++w)
      store(c + r * p.c_row + w * L, pairs ? sum[r][w] * p.scale : sum[r][w]);
}

template <bool pairs, class C, int W>
ATTENTION_KERNEL_INLINE void product_strips(const Product<C>& p, int64_t column) {
  constexpr int R = MESHWRIGHT_ATTENTION_STRIP;
  int64_t row = 0;
  for (; row + R <= p.rows; row += R) product_tile<pairs, C, R, W>(p, row, column);
  if constexpr (R > 4)
    if (row + 4 <= p.rows) product_tile<pairs, C, 4, W>(p, row, column), row += 4;
  for (; row < p.rows; ++row) product_tile<pairs, C, 1, W>(p, row, column);
}

template <bool pairs = false, class C>
ATTENTION_KERNEL void multiply(const Product<C>& p) {
  constexpr int64_t L = kLanes<C>;
  int64_t column = 0;
  for (; column + 2 * L <= p.columns; column += 2 * L) product_strips<pairs, C, 2>(p, column);
  if (column < p.columns) product_strips<pairs, C, 1>(p, column);
}

// Rows of storage to rows of the compute type, times `factor`; zeros from `size` to `padded`.
template <class T, class C>
ATTENTION_KERNEL void load_rows(const T* from, int64_t from_row, int64_t rows, int64_t size,
                                int64_t padded, C factor, C* to, int64_t to_row) {
  constexpr int64_t L = kLanes<C>;
  for (int64_t r = 0; r < rows; ++r, from += from_row, to += to_row) {
    int64_t i = 0;
    for (; i + L <= size; i += L) store(to + i, load_as(from + i) * factor);
    for (; i < size; ++i) to[i] = static_cast<C>(from[i]) * factor;
    for (; i < padded; ++i) to[i] = 0;
  }
}

// Whether scores of storage T are products of pairs, and their depth.
template <class T>
constexpr bool kPairs = MESHWRIGHT_ATTENTION_PAIRS != 0 && std::is_same_v<T, c10::BFloat16>;
template <class T>
constexpr int64_t depth_of(int64_t head_dim) {
  return kPairs<T> ? (head_dim + 1) / 2 : head_dim;
}
// The same rows as the factors of such a product: as load_rows, or pairs as they are in storage.
template <class T, class C>
ATTENTION_KERNEL void load_factors(const T* from, int64_t from_row, int64_t rows, int64_t size,
                                   C factor, C* to, int64_t to_row) {
  constexpr int64_t L = kLanes<C>;
  int64_t padded = (depth_of<T>(size) + L - 1) / L * L;
  if constexpr (kPairs<T>) {
    size_t bytes = static_cast<size_t>(size) * sizeof(T);
    for (int64_t r = 0; r < rows; ++r, from += from_row, to += to_row) {
      std::fill(to + size / 2, to + padded, C{0});
      __builtin_memcpy(to, from, bytes);
    }
  } else {
    load_rows(from, from_row, rows, size, padded, factor, to, to_row);
  }
}

// to (+)= from * factor, of any type of `to`.
template <class T, class C>
ATTENTION_KERNEL void store_row(const C* from, C factor, int64_t size, bool add, T* to) {
  if (add)
    for (int64_t i = 0; i < size; ++i)
      to[i] = static_cast<T>(static_cast<C>(to[i]) + from[i] * factor);
  else
    for (int64_t i = 0; i < size; ++i) to[i] = static_cast<T>(from[i] * factor);
}

// a and b, element by element in turn, from their element `first` on.
template <int first, class C, int... i>
ATTENTION_KERNEL_INLINE Lanes<C> interleave(Lanes<C> a, Lanes<C> b,
                                            std::integer_sequence<int, i...>) {
  constexpr int L = sizeof...(i);
  return __builtin_shufflevector(a, b, (first + i / 2 + i % 2 * L)...);
}

// A square of lanes; riffling the rows as one deals cards, once for each bit of a lane's number,
// turns it over.
template <class C>
ATTENTION_KERNEL_INLINE void transpose_square(const C* from, int64_t from_row, C* to,
                                              int64_t to_row) {
  constexpr int L = static_cast<int>(kLanes<C>);
  constexpr std::make_integer_sequence<int, L> all;
  Lanes<C> x[L], y[L];
#pragma GCC unroll 16
  for (int i = 0; i < L; ++i) x[i] = load(from + i * from_row);
#pragma GCC unroll 4
  for (int step = 1; step < L; step *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < L / 2; ++i) {
      y[2 * i] = interleave<0, C>(x[i], x[i + L / 2], all);
      y[2 * i + 1] = interleave<L / 2, C>(x[i], x[i + L / 2], all);
    }
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) x[i] = y[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < L; ++i) store(to + i * to_row, x[i]);
}
// from [kKeys, padded] to [padded, kKeys].
template <class C>
ATTENTION_KERNEL void transpose(const C* from, int64_t from_row, int64_t padded, C* to,
                                int64_t to_row) {
  for (int64_t j = 0; j < kKeys; j += kLanes<C>)
    for (int64_t i = 0; i < padded; i += kLanes<C>)
      transpose_square(from + j * from_row + i, from_row, to + i * to_row + j, to_row);
}
