#include "few_rows.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sdk/base/attention_cache.h"

namespace meshwright::detail::few_rows {

namespace {

constexpr int64_t kMost = 16;     // rows; with more, LibTorch's products win
constexpr int64_t kPadding = 16;  // a row of x has zeros up to a multiple of it

template <class T>
struct Product {
  int64_t m = 0, n = 0, k = 0;
  const float* x = nullptr;  // rows `padded` apart
  int64_t padded = 0;
  const T* weight = nullptr;  // rows `row` apart
  int64_t row = 0;
  const T* bias = nullptr;
  T* out = nullptr;  // [m, n]
};

}  // namespace

}  // namespace meshwright::detail::few_rows

#if defined(__x86_64__)
#define MESHWRIGHT_FEW_ROWS_TARGET avx512
#define MESHWRIGHT_FEW_ROWS_ATTRIBUTES __attribute__((target("arch=x86-64-v4"), optimize("O3")))
#define MESHWRIGHT_FEW_ROWS_BYTES 64
#define MESHWRIGHT_FEW_ROWS_COLUMNS 4
#include "few_rows_target.h"

#define MESHWRIGHT_FEW_ROWS_TARGET avx2
#define MESHWRIGHT_FEW_ROWS_ATTRIBUTES __attribute__((target("arch=x86-64-v3"), optimize("O3")))
#define MESHWRIGHT_FEW_ROWS_BYTES 32
#define MESHWRIGHT_FEW_ROWS_COLUMNS 2
#include "few_rows_target.h"
#endif

#define MESHWRIGHT_FEW_ROWS_TARGET baseline
#define MESHWRIGHT_FEW_ROWS_ATTRIBUTES __attribute__((optimize("O3")))
#define MESHWRIGHT_FEW_ROWS_BYTES 16
#define MESHWRIGHT_FEW_ROWS_COLUMNS 2
#include "few_rows_target.h"

namespace meshwright::detail {

using at::Tensor;

namespace {

template <class T>
void multiply(const few_rows::Product<T>& p, AttentionTarget target) {
  static const AttentionTarget best = attention_targets().back();
  if (target == AttentionTarget::kBest) target = best;
  // What a thread is woken for, and a multiple of what a tile takes.
  constexpr int64_t kWork = 1 << 16;
  const int64_t grain = std::max<int64_t>(kWork / std::max<int64_t>(p.k * p.m, 1), 8);
  at::parallel_for(0, (p.n + 7) / 8, (grain + 7) / 8, [&](int64_t begin, int64_t end) {
    begin *= 8;
    end = std::min(end * 8, p.n);
    switch (target) {
#if defined(__x86_64__)
      case AttentionTarget::kAvx512Bf16:
      case AttentionTarget::kAvx512:
        return few_rows::avx512::columns(p, begin, end);
      case AttentionTarget::kAvx2:
        return few_rows::avx2::columns(p, begin, end);
#endif
      default:
        return few_rows::baseline::columns(p, begin, end);
    }
  });
}

template <class T>
Tensor product_of(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                  AttentionTarget target) {
  few_rows::Product<T> p{.m = x.size(0), .n = weight.size(0), .k = x.size(1)};
  p.padded = (p.k + few_rows::kPadding - 1) / few_rows::kPadding * few_rows::kPadding;
  // Kept by the thread: decoding comes here hundreds of times a token.
  thread_local std::vector<float> rows;
  rows.resize(std::max(rows.size(), static_cast<size_t>(p.m * p.padded)));
  const T* from = x.const_data_ptr<T>();
  for (int64_t r = 0; r < p.m; ++r) {
    float* to = rows.data() + r * p.padded;
    std::copy(from + r * x.stride(0), from + r * x.stride(0) + p.k, to);
    std::fill(to + p.k, to + p.padded, 0.0F);
  }
  p.x = rows.data();
  p.weight = weight.const_data_ptr<T>();
  p.row = weight.stride(0);
  if (bias) p.bias = bias->const_data_ptr<T>();
  Tensor out = at::empty({p.m, p.n}, x.options());
  p.out = out.mutable_data_ptr<T>();
  multiply(p, target);
  return out;
}

}  // namespace

bool takes_few_rows(const Tensor& x, const Tensor& weight) {
  const at::ScalarType type = x.scalar_type();
  return KeyValueScope::keeps() && !c10::GradMode::is_enabled() && x.is_cpu() && weight.is_cpu() &&
         (type == at::kFloat || type == at::kBFloat16) && type == weight.scalar_type() &&
         x.dim() >= 2 && x.size(-1) == weight.size(-1) && x.numel() > 0 && weight.numel() > 0 &&
         x.numel() <= few_rows::kMost * x.size(-1) && x.stride(-1) == 1 && weight.stride(-1) == 1 &&
         !at::autocast::is_autocast_enabled(at::kCPU);
}

Tensor few_rows_product(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                        AttentionTarget target) {
  return x.scalar_type() == at::kBFloat16 ? product_of<c10::BFloat16>(x, weight, bias, target)
                                          : product_of<float>(x, weight, bias, target);
}

}  // namespace meshwright::detail
