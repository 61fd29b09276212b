// The attention core, on one thread unless told otherwise, beside LibTorch's own attention (flash
// on the CPU), in turns in one process: medians of forward, and of forward and backward. Then
// windows.
//   bench_attention [ROUNDS [THREADS]]
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "meshwright/nn/attention.h"

using namespace meshwright;
using at::Tensor;

namespace {

struct Shape {
  int64_t length, head_dim, heads, kv_heads;
  at::ScalarType type;
};

struct Heads {
  Tensor query, key, value, grad;  // [1, length, heads, head_dim]
};

Heads make(const Shape& s) {
  auto leaf = [&](int64_t heads) {
    return at::randn({1, s.length, heads, s.head_dim}).to(s.type).set_requires_grad(true);
  };
  return {leaf(s.heads), leaf(s.kv_heads), leaf(s.kv_heads), leaf(s.heads).detach()};
}

Tensor ours(const Shape& s, const Heads& h, int64_t window) {
  AttentionCore core(
      AttentionOptions{.scale = 1 / std::sqrt(static_cast<double>(s.head_dim)), .window = window});
  return core(h.query, h.key, h.value);
}

Tensor theirs(const Shape& s, const Heads& h) {
  return at::scaled_dot_product_attention(h.query.transpose(1, 2), h.key.transpose(1, 2),
                                          h.value.transpose(1, 2), {}, 0, /*is_causal=*/true, {},
                                          s.heads != s.kv_heads)
      .transpose(1, 2);
}

double milliseconds(const std::function<void()>& body) {
  auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Times {
  std::vector<double> forward, both;
  void run(const Heads& h, const std::function<Tensor()>& attention) {
    Tensor out;
    const double there = milliseconds([&] { out = attention(); });
    const double back = milliseconds([&] { out.backward(h.grad); });
    forward.push_back(there);
    both.push_back(there + back);
    for (const Tensor& t : {h.query, h.key, h.value}) t.mutable_grad() = Tensor();
  }
};

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 9;
  at::set_num_threads(argc > 2 ? std::atoi(argv[2]) : 1);
  std::printf("%6s %4s %6s %-9s %12s %12s %7s %12s %12s %7s\n", "tokens", "head", "q/kv", "type",
              "forward ms", "LibTorch", "ratio", "both ms", "LibTorch", "ratio");
  for (at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (int64_t length : {512, 2048, 8192})
      for (int64_t head_dim : {32, 64, 128})
        for (int64_t kv_heads : {4, 1}) {
          const Shape s{length, head_dim, 4, kv_heads, type};
          const Heads h = make(s);
          Times mine, other;
          for (int i = 0; i <= (length > 4096 ? rounds / 3 : rounds); ++i) {
            mine.run(h, [&] { return ours(s, h, 0); });
            other.run(h, [&] { return theirs(s, h); });
          }
          const double f = median(mine.forward), g = median(other.forward), b = median(mine.both),
                       c = median(other.both);
          std::printf("%6lld %4lld %4d/%d %-9s %12.2f %12.2f %7.2f %12.2f %12.2f %7.2f\n",
                      static_cast<long long>(length), static_cast<long long>(head_dim), 4,
                      static_cast<int>(kv_heads), type == at::kFloat ? "float32" : "bfloat16", f, g,
                      g / f, b, c, c / b);
          std::fflush(stdout);
        }
  std::printf("\n%6s %12s %12s   8192 tokens, head 64, float32\n", "window", "forward ms",
              "both ms");
  const Shape s{8192, 64, 4, 4, at::kFloat};
  const Heads h = make(s);
  for (int64_t window : {0, 4096, 2048, 1024, 512, 256}) {
    Times mine;
    for (int i = 0; i < 3; ++i) mine.run(h, [&] { return ours(s, h, window); });
    std::printf("%6lld %12.2f %12.2f\n", static_cast<long long>(window), median(mine.forward),
                median(mine.both));
  }
  return 0;
}
