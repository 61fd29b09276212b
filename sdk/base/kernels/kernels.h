// Kernels of our own: what a layer does between its products, in one pass over memory. They compute
// in float32 and round where operators on the type would, so that devices have the CPU's numbers.
// The text is compiled at run time for the device (after arguments.h, device_team.h and
// the two of grouped products, without any other header) and by tests for the host (after
// host_team.h and those two). More than 450 lines, since that compiler sees one text.
namespace meshwright::kernels {

inline float wide(float x) { return x; }
inline float wide(Half x) { return from_half(x.bits); }
inline float wide(BFloat16 x) { return float_of((unsigned)x.bits << 16); }
inline void put(float& to, float x) { to = x; }
inline void put(Half& to, float x) { to.bits = to_half(x); }
inline void put(BFloat16& to, float x) {  // to the nearest, and of two to the even one
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to.bits) : "f"(x));
#else
  const unsigned bits = bits_of(x);
  to.bits = x == x ? (unsigned short)((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16) : 0x7fc0;
#endif
}
template <class T>
inline float rounded(float x) {
  T out;
  put(out, x);
  return wide(out);
}

// Neighbours that are read and written at once.
template <class T, int n>
struct alignas(sizeof(T) * n) Pack {
  T at[n];
};
template <class T, int n>
inline Pack<T, n> load(const void* from, long long element) {
  return *(const Pack<T, n>*)((const T*)from + element);
}
template <class T, int n>
inline void store(void* to, long long element, const Pack<T, n>& pack) {
  *(Pack<T, n>*)((T*)to + element) = pack;
}

// The same of another type of elements, at most 16 bytes at a time.
template <class T, int n>
inline void load_wide(float (&to)[n], const void* from, long long element) {
  constexpr int once = n * sizeof(T) > 16 ? int(16 / sizeof(T)) : n;
  for (int i = 0; i < n; i += once) {
    const Pack<T, once> pack = load<T, once>(from, element + i);
    for (int j = 0; j < once; ++j) to[i + j] = wide(pack.at[j]);
  }
}
template <class T, int n>
inline void load_kind(float (&to)[n], const void* from, long long element, Kind kind) {
  if (kind == Kind::bfloat16)
    load_wide<BFloat16>(to, from, element);
  else if (kind == Kind::half)
    load_wide<Half>(to, from, element);
  else
    load_wide<T>(to, from, element);
}
template <class T, int n>
inline void store_wide(void* to, long long element, const float (&from)[n]) {
  constexpr int once = n * sizeof(T) > 16 ? int(16 / sizeof(T)) : n;
  for (int i = 0; i < n; i += once) {
    Pack<T, once> pack;
    for (int j = 0; j < once; ++j) put(pack.at[j], from[i + j]);
    store(to, element + i, pack);
  }
}
template <class T, class From, int n>
inline void store_rounded(void* to, long long element, const Pack<From, n>& from) {
  Pack<T, n> pack;
  for (int j = 0; j < n; ++j) put(pack.at[j], wide(from.at[j]));
  store(to, element, pack);
}

template <class T, int n>
inline void store_kind(void* to, long long element, const Pack<T, n>& from, Kind kind) {
  if (kind == Kind::bfloat16)
    store_rounded<BFloat16>(to, element, from);
  else if (kind == Kind::half)
    store_rounded<Half>(to, element, from);
  else
    store(to, element, from);
}

struct Sum {
  float value;
  void join(const Sum& other) { value += other.value; }
};

template <class T>
inline float normed(float x, float rstd, float weight, bool plus_one) {
  return plus_one ? x * rstd * (1 + weight) : weight * rounded<T>(x * rstd);
}

template <class T, int n, int threads>
void rms_norm(const Team<threads>& team, const RmsNorm& to) {
  const bool plus_one = to.plus_one != 0;
  for (long long row = team.index(); row < to.rows; row += team.count()) {
    const long long first = row * to.size;
    const Sum sum = team.reduce(to.size / n, Sum{0}, [&](Sum& all, long long i) {
      Pack<T, n> x = load<T, n>(to.x, first + i * n);
      if (to.added != nullptr) {
        float more[n];
        load_kind<T>(more, to.added, first + i * n, to.kind_of_added);
        for (int j = 0; j < n; ++j) put(x.at[j], wide(x.at[j]) + more[j]);
        store(to.sum, first + i * n, x);
      }
      for (int j = 0; j < n; ++j) all.value += wide(x.at[j]) * wide(x.at[j]);
    });
    const float rstd = 1 / sqrtf(sum.value / (float)to.size + to.epsilon);
    const void* from = to.added != nullptr ? to.sum : to.x;
    team.each(to.size / n, [&](long long i) {
      Pack<T, n> x = load<T, n>(from, first + i * n);
      const Pack<T, n> weight = load<T, n>(to.weight, i * n);
      for (int j = 0; j < n; ++j)
        put(x.at[j], normed<T>(wide(x.at[j]), rstd, wide(weight.at[j]), plus_one));
      store(to.y, first + i * n, x);
      if (i == 0) to.rstd[row] = rstd;
    });
  }
}

// The gradient of what is normed.
template <class T>
inline float normed_backward(float grad, float weight, bool plus_one) {
  return plus_one ? grad * (1 + weight) : rounded<T>(grad * weight);
}

// With h = x rstd and g the gradient times the scale: rstd (g - h mean(g h)).
template <class T, int n, int threads>
void rms_norm_backward(const Team<threads>& team, const RmsNormBackward& to) {
  const bool plus_one = to.plus_one != 0;
  // Element j of pack i lies at j packs + i: neighbours in a warp meet no bank twice.
  const long long packs = to.size / n;
  float* to_weight = to.to_weight != nullptr ? team.memory(to.size) : nullptr;
  if (to_weight != nullptr)
    team.each(packs, [&](long long i) {
      for (int j = 0; j < n; ++j) to_weight[j * packs + i] = 0;
    });
  for (long long row = team.index(); row < to.rows; row += team.count()) {
    const long long first = row * to.size;
    const float rstd = to.rstd[row];
    const Sum sum = team.reduce(packs, Sum{0}, [&](Sum& all, long long i) {
      const Pack<T, n> x = load<T, n>(to.x, first + i * n),
                       grad = load<T, n>(to.grad, first + i * n),
                       weight = load<T, n>(to.weight, i * n);
      for (int j = 0; j < n; ++j)
        all.value +=
            normed_backward<T>(wide(grad.at[j]), wide(weight.at[j]), plus_one) * wide(x.at[j]);
    });
    const float back = sum.value * rstd * rstd / (float)to.size;
    team.each(packs, [&](long long i) {
      const Pack<T, n> x = load<T, n>(to.x, first + i * n),
                       grad = load<T, n>(to.grad, first + i * n),
                       weight = load<T, n>(to.weight, i * n);
      Pack<T, n> out{}, more{};
      if (to.grad_of_sum != nullptr) more = load<T, n>(to.grad_of_sum, first + i * n);
      for (int j = 0; j < n; ++j) {
        const float value = wide(x.at[j]), g = wide(grad.at[j]);
        float gradient =
            (normed_backward<T>(g, wide(weight.at[j]), plus_one) - value * back) * rstd;
        if (to.grad_of_sum != nullptr) gradient = rounded<T>(gradient) + wide(more.at[j]);
        put(out.at[j], gradient);
        if (to_weight != nullptr)
          to_weight[j * packs + i] +=
              plus_one ? g * value * rstd : rounded<T>(g * rounded<T>(value * rstd));
      }
      store(to.to_x, first + i * n, out);
      if (to.to_added != nullptr) store_kind(to.to_added, first + i * n, out, to.kind_of_added);
    });
  }
  if (to_weight != nullptr)
    team.each(packs, [&](long long i) {
      for (int j = 0; j < n; ++j)
        to.to_weight[team.index() * to.size + i * n + j] = to_weight[j * packs + i];
    });
}

// Each block has 32 columns, and each of its warps a part of their rows.
template <class T>
void sum_rows(const Team<kBlock>& team, const SumRows& to) {
  constexpr int kParts = kBlock / 32;
  float* sums = team.memory(kBlock);
  for (long long first = team.index() * 32; first < to.size; first += team.count() * 32) {
    team.each(kBlock, [&](long long i) {
      const long long column = first + i % 32;
      float sum = 0;
      constexpr int kOnce = 8;  // loads under way
      for (long long row = i / 32; column < to.size && row < to.rows; row += kOnce * kParts) {
        float some[kOnce];
        for (int j = 0; j < kOnce; ++j)
          some[j] =
              row + j * kParts < to.rows ? to.parts[(row + j * kParts) * to.size + column] : 0;
        for (int j = 0; j < kOnce; ++j) sum += some[j];
      }
      sums[i] = sum;
    });
    team.synchronize();
    team.each(32, [&](long long i) {
      float sum = 0;
      for (long long part = 0; part < kParts; ++part) sum += sums[part * 32 + i];
      if (first + i < to.size) put(((T*)to.out)[first + i], sum);
    });
    team.synchronize();
  }
}

template <class T, int n>
void sum_wide(const Team<kBlock>& team, const SumWide& to) {
  team.spread(to.size / n, [&](long long i) {
    float sum[n], more[n];
    load_wide<T>(sum, to.parts[to.count - 1], i * n);
    for (int part = to.count - 2; part >= 0; --part) {
      load_wide<T>(more, to.parts[part], i * n);
      for (int j = 0; j < n; ++j) sum[j] += more[j];
    }
    for (int j = 0; j < n; ++j) to.out[i * n + j] = sum[j];
  });
}

// Where a row begins, of `in` with what stands among its rows.
struct RowStart {
  const void* in;
  long long at;  // in elements; negative: there is no such row
};
inline RowStart row_start(const void* in, long long stride, long long size, const Inserted& among,
                          long long row) {
  const long long behind = row - among.first;
  if (row < 0) return {in, -1};
  if (behind < 0) return {in, row * stride};
  if (behind < among.count) return {among.rows, among.named[behind] * size};
  return {in, (row - among.count) * stride};
}

template <class T, int n>
void take_rows(const Team<32>& team, const TakeRows& to) {
  const long long in_stride = to.in_stride != 0 ? to.in_stride : to.size,
                  out_stride = to.out_stride != 0 ? to.out_stride : to.size;
  for (long long row = team.index(); row < to.count; row += team.count()) {
    const RowStart from = row_start(to.in, in_stride, to.size, to.among, to.rows[row]);
    team.each(to.size / n, [&](long long i) {
      float x[n] = {};
      if (from.at >= 0 && to.wide != 0)
        load_wide<float>(x, from.in, from.at + i * n);
      else if (from.at >= 0)
        load_wide<T>(x, from.in, from.at + i * n);
      store_wide<T>(to.out, row * out_stride + i * n, x);
    });
  }
}

template <class T, int n>
void combine_rows(const Team<32>& team, const CombineRows& to) {
  const long long in_stride = to.in_stride != 0 ? to.in_stride : to.size;
  for (long long row = team.index(); row < to.count; row += team.count())
    team.each(to.size / n, [&](long long i) {
      float sum[n] = {}, x[n];
      for (int place = 0; place < to.most; ++place) {
        const RowStart from =
            row_start(to.in, in_stride, to.size, to.among, to.place[row * to.most + place]);
        if (from.at < 0) continue;
        load_wide<T>(x, from.in, from.at + i * n);
        for (int j = 0; j < n; ++j) sum[j] += x[j];
      }
      if (to.wide != 0)
        store_wide<float>(to.out, row * to.size + i * n, sum);
      else
        store_wide<T>(to.out, row * to.size + i * n, sum);
    });
}

inline float sigmoid(float x) { return 1 / (1 + expf(-x)); }

template <class T, int n>
void silu_times(const Team<kBlock>& team, const SiluTimes& to) {
  const long long packs = to.size / n;
  team.spread(to.rows * packs, [&](long long i) {
    const long long row = to.rows == 1 ? 0 : i / packs, column = (i - row * packs) * n;
    Pack<T, n> gate = load<T, n>(to.gate, row * to.gate_stride + column);
    const Pack<T, n> up = load<T, n>(to.up, row * to.up_stride + column);
    for (int j = 0; j < n; ++j) {
      const float g = wide(gate.at[j]);
      put(gate.at[j], rounded<T>(g * sigmoid(g)) * wide(up.at[j]));
    }
    store(to.out, i * n, gate);
  });
}

template <class T, int n>
void silu_times_backward(const Team<kBlock>& team, const SiluTimesBackward& to) {
  const long long packs = to.size / n;
  team.spread(to.rows * packs, [&](long long i) {
    const long long row = to.rows == 1 ? 0 : i / packs, column = (i - row * packs) * n;
    Pack<T, n> gate = load<T, n>(to.gate, row * to.gate_stride + column),
               up = load<T, n>(to.up, row * to.up_stride + column);
    const Pack<T, n> grad = load<T, n>(to.grad, i * n);
    for (int j = 0; j < n; ++j) {
      const float g = wide(gate.at[j]), s = sigmoid(g), d = wide(grad.at[j]);
      put(gate.at[j], rounded<T>(d * wide(up.at[j])) * s * (1 + g * (1 - s)));
      put(up.at[j], d * rounded<T>(g * s));
    }
    store(to.to_gate, i * n, gate);
    store(to.to_up, i * n, up);
  });
}

template <class T, int n>
void weighted_swiglu(const Team<32>& team, const WeightedSwiglu& to) {
  for (long long row = team.index(); row < to.rows; row += team.count()) {
    const long long gates = 2 * row * to.size, ups = gates + to.size;
    const float weight = to.weights[row];
    team.each(to.size / n, [&](long long i) {
      Pack<T, n> gate = load<T, n>(to.h, gates + i * n);
      const Pack<T, n> up = load<T, n>(to.h, ups + i * n);
      for (int j = 0; j < n; ++j) {
        const float g = wide(gate.at[j]);
        put(gate.at[j], g * sigmoid(g) * wide(up.at[j]) * weight);
      }
      store(to.out, row * to.size + i * n, gate);
    });
  }
}

template <class T, int n>
void weighted_swiglu_backward(const Team<32>& team, const WeightedSwigluBackward& to) {
  for (long long row = team.index(); row < to.rows; row += team.count()) {
    const long long first = row * to.size, gates = 2 * first, ups = gates + to.size;
    const float weight = to.weights[row];
    const Sum sum = team.reduce(to.size / n, Sum{0}, [&](Sum& all, long long i) {
      Pack<T, n> gate = load<T, n>(to.h, gates + i * n), up = load<T, n>(to.h, ups + i * n),
                 grad = load<T, n>(to.grad, first + i * n);
      for (int j = 0; j < n; ++j) {
        const float g = wide(gate.at[j]), u = wide(up.at[j]), s = sigmoid(g), a = g * s,
                    given = wide(grad.at[j]), d = given * weight;
        all.value += given * (a * u);
        put(gate.at[j], d * (u * s * (1 + g * (1 - s))));
        put(up.at[j], d * a);
        put(grad.at[j], a * u * weight);
      }
      store(to.to_h, gates + i * n, gate);
      store(to.to_h, ups + i * n, up);
      store(to.weighted, first + i * n, grad);
    });
    team.each(1, [&](long long) { to.to_weights[row] = sum.value; });
  }
}

template <class T, int n>
void rotate(const Team<kBlock>& team, const Rotate& to) {
  const int half = to.dim / 2, packs = half / n, rest = to.size - to.dim,
            heads = to.query.heads + to.key.heads;
  // By angles in float32 a product is, too; its gradient has the type of what was turned.
  const bool wide_product = to.wide_angles != 0 && to.direction > 0;
  auto product = [&](float x, float y) { return wide_product ? x * y : rounded<T>(x * y); };
  auto load_angles = [&](float(&into)[n], const void* from, long long element) {
    if (to.wide_angles != 0)
      load_wide<float>(into, from, element);
    else
      load_wide<T>(into, from, element);
  };
  // Divisions of 32 bits are the cheaper ones.
  const long long rows = to.batch * to.length;
  auto divided = [](long long x, long long by) {
    return x >> 31 == 0 ? (long long)((unsigned)x / (unsigned)by) : x / by;
  };
  auto with_head = [&](long long row, int number, auto body) {
    const long long sample = divided(row, to.length), position = row - sample * to.length;
    const bool query = number < to.query.heads;
    const Heads& all = query ? to.query : to.key;
    const int head = query ? number : number - to.query.heads;
    body((to.by_sample != 0 ? row : position) * to.dim,
         (const T*)all.in + sample * all.batch_stride + position * all.row_stride +
             head * all.head_stride,
         (T*)all.out + (row * all.heads + head) * to.size);
  };
  team.spread(rows * heads * packs, [&](long long i) {
    const long long of_head = divided(i, packs), row = divided(of_head, heads);
    const int pair = (int)(i - of_head * packs) * n;
    with_head(row, (int)(of_head - row * heads), [&](long long angles, const T* in, T* out) {
      float cos[n], sin[n];
      load_angles(cos, to.cos, angles + pair);
      load_angles(sin, to.sin, angles + pair);
      Pack<T, n> a = load<T, n>(in, pair), b = load<T, n>(in, pair + half);
      for (int j = 0; j < n; ++j) {
        const float x = wide(a.at[j]), y = wide(b.at[j]), c = cos[j], s = sin[j] * to.direction;
        put(a.at[j], product(x, c) - product(y, s));
        put(b.at[j], product(y, c) + product(x, s));
      }
      store(out, pair, a);
      store(out, pair + half, b);
    });
  });
  if (rest > 0)
    team.spread(rows * heads * rest, [&](long long i) {
      const long long of_head = divided(i, rest), row = divided(of_head, heads);
      const long long element = to.dim + (i - of_head * rest);
      with_head(row, (int)(of_head - row * heads),
                [&](long long, const T* in, T* out) { out[element] = in[element]; });
    });
}

// The largest number so far, and the sum of exponentials of the numbers less it. What is not a
// number changes no maximum, and makes the sum one that is none.
struct Exponentials {
  float max, sum;
  void raise(float to) {
    if (!(to > max)) return;
    sum *= expf(max - to);
    max = to;
  }
  void join(const Exponentials& other) {
    Exponentials more = other;
    raise(more.max);
    more.raise(max);
    sum += more.sum;
  }
};

template <class T, int n>
void cross_entropy(const Team<kBlock>& team, const CrossEntropy& to) {
  const float none = float_of(0xff800000U);  // minus infinity
  for (long long row = team.index(); row < to.rows; row += team.count()) {
    const long long first = row * to.stride, target = to.targets[row], place = target - to.begin;
    const Exponentials all =
        team.reduce(to.columns / n, Exponentials{none, 0}, [&](Exponentials& mine, long long i) {
          const Pack<T, n> x = load<T, n>(to.logits, first + i * n);
          float most = none;
          for (int j = 0; j < n; ++j) most = wide(x.at[j]) > most ? wide(x.at[j]) : most;
          mine.raise(most);
          const float shift = mine.max == none ? 0 : mine.max;
          for (int j = 0; j < n; ++j) mine.sum += expf(wide(x.at[j]) - shift);
        });
    team.each(1, [&](long long) {
      const bool ignored = target == to.ignore,
                 bad = !ignored && (target < 0 || target >= to.vocabulary),
                 here = !ignored && place >= 0 && place < to.columns;
      const float nan = float_of(0x7fc00000U),
                  picked = here  ? wide(((const T*)to.logits)[first + place])
                           : bad ? nan
                                 : 0,
                  shift = all.max == none ? 0 : all.max;
      if (bad) *to.bad = target;
      to.max[row] = to.losses != nullptr ? shift : all.max;
      to.sum[row] = to.losses != nullptr ? 1 / all.sum : all.sum;
      to.picked[row] = picked;
      if (to.losses != nullptr)
        to.losses[row] = ignored ? 0 : log((double)all.sum) + (double)shift - (double)picked;
    });
  }
}

template <class T, int n>
void cross_entropy_backward(const Team<kBlock>& team, const CrossEntropyBackward& to) {
  const float grad = *to.grad;
  for (long long row = team.index(); row < to.rows; row += team.count()) {
    const long long target = to.targets[row], place = target - to.begin;
    const bool ignored = target == to.ignore;
    const float shift = to.shift[row], scale = to.inverse[row] * grad;
    team.each(to.columns / n, [&](long long i) {
      Pack<T, n> x = load<T, n>(to.logits, row * to.stride + i * n);
      for (int j = 0; j < n; ++j) {
        const float less = i * n + j == place ? grad : 0;
        put(x.at[j], ignored ? 0 : expf(wide(x.at[j]) - shift) * scale - less);
      }
      store(to.out, row * to.columns + i * n, x);
    });
  }
}

}  // namespace meshwright::kernels

// NAME_TYPE goes by single elements, NAME_TYPE_packs by 16 bytes. Those of one type are compiled
// together, when one of them is wanted.
#define MESHWRIGHT_KERNELS_BY(suffix, T, n)                                                       \
  MESHWRIGHT_KERNEL(rms_norm_##suffix, RmsNorm, 32, rms_norm<T, n, 32>)                           \
  MESHWRIGHT_KERNEL(rms_norm_wide_##suffix, RmsNorm, kBlock, rms_norm<T, n, kBlock>)              \
  MESHWRIGHT_KERNEL(rms_norm_backward_##suffix, RmsNormBackward, 32, rms_norm_backward<T, n, 32>) \
  MESHWRIGHT_KERNEL(rms_norm_wide_backward_##suffix, RmsNormBackward, kBlock,                     \
                    rms_norm_backward<T, n, kBlock>)                                              \
  MESHWRIGHT_KERNEL(sum_rows_##suffix, SumRows, kBlock, sum_rows<T>)                              \
  MESHWRIGHT_KERNEL(sum_wide_##suffix, SumWide, kBlock, sum_wide<T, n>)                           \
  MESHWRIGHT_KERNEL(take_rows_##suffix, TakeRows, 32, take_rows<T, n>)                            \
  MESHWRIGHT_KERNEL(combine_rows_##suffix, CombineRows, 32, combine_rows<T, n>)                   \
  MESHWRIGHT_KERNEL(silu_times_##suffix, SiluTimes, kBlock, silu_times<T, n>)                     \
  MESHWRIGHT_KERNEL(silu_times_backward_##suffix, SiluTimesBackward, kBlock,                      \
                    silu_times_backward<T, n>)                                                    \
  MESHWRIGHT_KERNEL(weighted_swiglu_##suffix, WeightedSwiglu, 32, weighted_swiglu<T, n>)          \
  MESHWRIGHT_KERNEL(weighted_swiglu_backward_##suffix, WeightedSwigluBackward, 32,                \
                    weighted_swiglu_backward<T, n>)                                               \
  MESHWRIGHT_KERNEL(rotate_##suffix, Rotate, kBlock, rotate<T, n>)                                \
  MESHWRIGHT_KERNEL(cross_entropy_##suffix, CrossEntropy, kBlock, cross_entropy<T, n>)            \
  MESHWRIGHT_KERNEL(cross_entropy_backward_##suffix, CrossEntropyBackward, kBlock,                \
                    cross_entropy_backward<T, n>)
#define MESHWRIGHT_KERNELS_float         \
  MESHWRIGHT_KERNELS_BY(float, float, 1) \
  MESHWRIGHT_KERNEL(grouped_product_float, GroupedProduct, kBlock, grouped_product)
#define MESHWRIGHT_KERNELS_float_packs         \
  MESHWRIGHT_KERNELS_BY(float_packs, float, 4) \
  MESHWRIGHT_KERNEL(grouped_product_float_packs, GroupedProduct, kBlock, grouped_product)
#define MESHWRIGHT_KERNELS_bfloat16 MESHWRIGHT_KERNELS_BY(bfloat16, BFloat16, 1)
#define MESHWRIGHT_KERNELS_bfloat16_packs MESHWRIGHT_KERNELS_BY(bfloat16_packs, BFloat16, 8)
#define MESHWRIGHT_KERNELS_half MESHWRIGHT_KERNELS_BY(half, Half, 1)
#define MESHWRIGHT_KERNELS_half_packs MESHWRIGHT_KERNELS_BY(half_packs, Half, 8)
#ifndef MESHWRIGHT_KERNELS
#define MESHWRIGHT_KERNELS                                                            \
  MESHWRIGHT_KERNELS_float MESHWRIGHT_KERNELS_float_packs MESHWRIGHT_KERNELS_bfloat16 \
      MESHWRIGHT_KERNELS_bfloat16_packs MESHWRIGHT_KERNELS_half MESHWRIGHT_KERNELS_half_packs
#endif
namespace meshwright::kernels {
MESHWRIGHT_KERNELS
}  // namespace meshwright::kernels
