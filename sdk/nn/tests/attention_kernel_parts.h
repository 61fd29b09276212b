// Attention of one key-value head by plain loops in double precision, and the parts of it that
// ranks compute with the kernel under test, each in memory of its own.
#pragma once

#include <c10/util/BFloat16.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "sdk/nn/attention_kernel.h"

namespace attention_kernel_test {

using namespace meshwright;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Problem {
  int64_t length = 1, head_dim = 16, group = 1, window = 0;
  std::vector<int32_t> documents;
  bool causal = true;
  double scale = 0.3;

  bool sees(int64_t i, int64_t j) const {
    return (!causal || j <= i) && (window == 0 || j > i - window) &&
           (documents.empty() ||
            documents[static_cast<size_t>(i)] == documents[static_cast<size_t>(j)]);
  }
  AttentionShape shape(AttentionTarget target) const {
    return {head_dim, group, scale, window, causal, target};
  }
};

// Rows [heads][length][head_dim] or numbers [heads][length].
using Values = std::vector<double>;

struct Answer {
  Values out, lse, dq, dk, dv;
};
struct Inputs {
  Values q, k, v, grad;
};

template <class T>
double rounded(double x) {
  return static_cast<double>(static_cast<T>(static_cast<float>(x)));
}

template <class T>
Inputs inputs_of(const Problem& p, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  auto draw = [&](int64_t heads) {
    Values x(static_cast<size_t>(heads * p.length * p.head_dim));
    for (double& value : x) value = rounded<T>(normal(generator));
    return x;
  };
  return {draw(p.group), draw(1), draw(1), draw(p.group)};
}

inline double dot(const double* a, const double* b, int64_t size) {
  double sum = 0;
  for (int64_t i = 0; i < size; ++i) sum += a[i] * b[i];
  return sum;
}
inline void add(double* to, const double* from, double factor, int64_t size) {
  for (int64_t i = 0; i < size; ++i) to[i] += factor * from[i];
}

inline Answer reference(const Problem& p, const Inputs& x) {
  int64_t S = p.length, d = p.head_dim;
  Answer a{Values(x.q.size()), Values(static_cast<size_t>(p.group * S), -kInfinity),
           Values(x.q.size()), Values(x.k.size()), Values(x.k.size())};
  Values weights(static_cast<size_t>(S));
  for (int64_t i = 0; i < p.group * S; ++i) {
    const double *q = &x.q[static_cast<size_t>(i * d)], *g = &x.grad[static_cast<size_t>(i * d)];
    double *out = &a.out[static_cast<size_t>(i * d)], *dq = &a.dq[static_cast<size_t>(i * d)];
    double top = -kInfinity, sum = 0;
    auto each = [&](auto f) {
      for (int64_t j = 0; j < S; ++j)
        if (p.sees(i % S, j)) f(static_cast<size_t>(j * d), weights[static_cast<size_t>(j)]);
    };
    each([&](size_t j, double& w) { top = std::max(top, w = p.scale * dot(q, &x.k[j], d)); });
    each([&](size_t, double& w) { sum += w = std::exp(w - top); });
    each([&](size_t j, double& w) { add(out, &x.v[j], w /= sum, d); });
    if (sum > 0) a.lse[static_cast<size_t>(i)] = top + std::log(sum);
    double delta = dot(out, g, d);
    each([&](size_t j, double w) {
      double slope = w * (dot(g, &x.v[j], d) - delta) * p.scale;
      add(dq, &x.k[j], slope, d);
      add(&a.dk[j], q, slope, d);
      add(&a.dv[j], g, w, d);
    });
  }
  return a;
}

// Rows of positions [begin, begin + count) of some heads, in memory of their own, as [count,
// heads, head_dim] with room between the rows.
template <class T>
struct Rows {
  int64_t size = 0, heads = 0, count = 0, row = 0;
  std::vector<T> memory;

  Rows() = default;
  Rows(int64_t new_heads, int64_t new_count, int64_t new_size, double value = 0)
      : size(new_size), heads(new_heads), count(new_count), row(heads * size + 3) {
    memory.assign(static_cast<size_t>(count * row), static_cast<T>(value));
  }
  T& at(int64_t head, int64_t i, int64_t e) {
    return memory[static_cast<size_t>(i * row + head * size + e)];
  }
  HeadView<T> view() { return {memory.data(), row, size}; }
  HeadView<const T> constant() { return {memory.data(), row, size}; }
  void take(const Values& from, int64_t length, int64_t begin) {
    each(length, begin, [&](size_t i, T& x) { x = static_cast<T>(from[i]); });
  }
  void add_to(Values& to, int64_t length, int64_t begin) {
    each(length, begin, [&](size_t i, T& x) { to[i] += static_cast<double>(x); });
  }
  template <class F>
  void each(int64_t length, int64_t begin, F f) {
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < count; ++i)
        for (int64_t e = 0; e < size; ++e)
          f(static_cast<size_t>((h * length + begin + i) * size + e), at(h, i, e));
  }
};

struct Range {
  int64_t begin, end;
};
using Ranges = std::vector<Range>;

// What one run holds; `garbage` fills what a forward or a first backward writes.
template <class T>
struct QueryHeld {
  using C = AttentionCompute<T>;
  Range range;
  Rows<T> q, grad, out;
  Rows<C> partial, dq;
  std::vector<C> lse, delta;

  QueryHeld(const Problem& p, const Inputs& x, Range r, double garbage) : range(r) {
    int64_t n = r.end - r.begin;
    q = grad = out = Rows<T>(p.group, n, p.head_dim, garbage);
    partial = dq = Rows<C>(p.group, n, p.head_dim, garbage);
    lse.assign(static_cast<size_t>(p.group * n), static_cast<C>(garbage));
    delta = lse;
    q.take(x.q, p.length, r.begin);
    grad.take(x.grad, p.length, r.begin);
  }
  QueryRun<T> run(const Problem& p, bool first) {
    int64_t n = range.end - range.begin;
    const int32_t* ids = p.documents.empty() ? nullptr : p.documents.data() + range.begin;
    return {range.begin,
            n,
            ids,
            q.constant(),
            out.view(),
            partial.view(),
            {lse.data(), n},
            grad.constant(),
            {delta.data(), n},
            dq.view(),
            first};
  }
};
template <class T>
struct KeyHeld {
  using C = AttentionCompute<T>;
  Range range;
  Rows<T> k, v;
  Rows<C> dk, dv;

  KeyHeld(const Problem& p, const Inputs& x, Range r, double garbage) : range(r) {
    k = v = Rows<T>(1, r.end - r.begin, p.head_dim);
    dk = dv = Rows<C>(1, r.end - r.begin, p.head_dim, garbage);
    k.take(x.k, p.length, r.begin);
    v.take(x.v, p.length, r.begin);
  }
  KeyRun<T> run(const Problem& p, bool first) {
    const int32_t* ids = p.documents.empty() ? nullptr : p.documents.data() + range.begin;
    return {
        range.begin, range.end - range.begin, ids, k.constant(), v.constant(), dk.view(), dv.view(),
        first};
  }
};

// One rank's queries and the keys that it has.
template <class T>
struct Part {
  using C = AttentionCompute<T>;
  std::vector<QueryHeld<T>> queries;
  std::vector<KeyHeld<T>> keys;

  Part(const Problem& p, const Inputs& x, const Ranges& q, const Ranges& k, bool first = true) {
    for (Range r : q) queries.emplace_back(p, x, r, first ? 77.0 : 0.0);
    for (Range r : k) keys.emplace_back(p, x, r, first ? 77.0 : 0.0);
  }
  void forward(const Problem& p, AttentionTarget target) {
    call(p, true, [&](auto q, auto k) { attention_forward<T>(p.shape(target), q, k); });
  }
  void backward(const Problem& p, AttentionTarget target, bool first = true) {
    for (QueryHeld<T>& q : queries) {
      int64_t n = q.range.end - q.range.begin;
      attention_delta<T>(p.head_dim, p.group, n, q.out.constant(), q.grad.constant(),
                         {q.delta.data(), n});
    }
    call(p, first, [&](auto q, auto k) { attention_backward<T>(p.shape(target), q, k); });
  }
  template <class F>
  void call(const Problem& p, bool first, F f) {
    std::vector<QueryRun<T>> q;
    std::vector<KeyRun<T>> k;
    for (QueryHeld<T>& held : queries) q.push_back(held.run(p, first));
    for (KeyHeld<T>& held : keys) k.push_back(held.run(p, first));
    f(std::span<const QueryRun<T>>(q), std::span<const KeyRun<T>>(k));
  }
  // Adds what this part computed to the whole sequence's.
  void add_outputs(const Problem& p, Answer& to, Values* partial = nullptr) {
    for (QueryHeld<T>& q : queries) {
      q.out.add_to(to.out, p.length, q.range.begin);
      if (partial != nullptr) q.partial.add_to(*partial, p.length, q.range.begin);
      int64_t n = q.range.end - q.range.begin;
      for (int64_t i = 0; i < p.group * n; ++i)
        to.lse[static_cast<size_t>(i / n * p.length + q.range.begin + i % n)] =
            static_cast<double>(q.lse[static_cast<size_t>(i)]);
    }
  }
  void add_gradients(const Problem& p, Answer& to) {
    for (QueryHeld<T>& q : queries) q.dq.add_to(to.dq, p.length, q.range.begin);
    for (KeyHeld<T>& k : keys) {
      k.dk.add_to(to.dk, p.length, k.range.begin);
      k.dv.add_to(to.dv, p.length, k.range.begin);
    }
  }
};

inline Answer nothing(const Problem& p) {
  size_t rows = static_cast<size_t>(p.length), size = static_cast<size_t>(p.head_dim),
         group = static_cast<size_t>(p.group);
  return {Values(group * rows * size), Values(group * rows), Values(group * rows * size),
          Values(rows * size), Values(rows * size)};
}

// Largest difference, relative to the largest value, or to 1, the size of all inputs; infinities
// must agree.
inline double difference(const Values& a, const Values& b) {
  double most = 0, size = 1;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    double off = std::abs(a[i] - b[i]);
    most = std::isnan(off) ? kInfinity : std::max(most, off);
    size = std::max(size, std::abs(b[i]));
  }
  return most / size;
}

template <class T>
constexpr double kOff = std::is_same_v<T, double> ? 1e-12 : 1e-5;
// A bfloat16 output is rounded, and what is computed from it is off by as much.
template <class T>
constexpr double kOffRounded = std::is_same_v<T, c10::BFloat16> ? 8e-3 : kOff<T>;

template <class T>
void check_outputs(const Answer& got, const Answer& want) {
  CHECK(difference(got.out, want.out) < kOffRounded<T>);
  CHECK(difference(got.lse, want.lse) < kOff<T>);
}
template <class T>
void check_gradients(const Answer& got, const Answer& want) {
  CHECK(difference(got.dq, want.dq) < kOffRounded<T>);
  CHECK(difference(got.dk, want.dk) < kOffRounded<T>);
  CHECK(difference(got.dv, want.dv) < kOffRounded<T>);
}

inline bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

inline std::string describe(const Problem& p, AttentionTarget target) {
  return "length " + std::to_string(p.length) + ", head_dim " + std::to_string(p.head_dim) +
         ", group " + std::to_string(p.group) + ", window " + std::to_string(p.window) +
         ", documents " + std::to_string(p.documents.size()) + ", causal " +
         std::to_string(p.causal) + ", target " + std::to_string(static_cast<int>(target));
}

}  // namespace attention_kernel_test
