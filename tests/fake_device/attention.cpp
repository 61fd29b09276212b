// Attention operators that LibTorch has for CUDA alone, for the CPU, by their definition;
// operators.cpp runs them on device memory.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/library.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

namespace {

using at::Tensor;
using c10::SymInt;
using MaybeTensor = std::optional<Tensor>;
using MaybeInt = std::optional<int64_t>;
using MaybeSymInt = std::optional<SymInt>;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// How scores are made of queries and keys.
struct Scores {
  double scale = 1;
  bool causal = false;
  bool from_the_end = true;  // the last row sees the last key; else the first row sees the first
  MaybeInt left, right;      // how far a row sees
  MaybeTensor bias;
};

double scale_of(std::optional<double> scale, const Tensor& query) {
  return scale ? *scale : 1 / std::sqrt(static_cast<double>(query.size(-1)));
}

// Of one sample, [rows, heads, width], to [heads, rows, width]; keys may have fewer heads.
Tensor with_heads(const Tensor& x, int64_t heads) {
  return x.to(at::kFloat).transpose(0, 1).repeat_interleave(heads / x.size(1), 0);
}

Tensor scores_of(const Tensor& q, const Tensor& k, const Scores& how) {
  Tensor scores = at::matmul(q, k.transpose(1, 2)) * how.scale;
  if (how.bias) scores = scores + how.bias->to(at::kFloat);
  const int64_t rows = q.size(1), keys = k.size(1), shift = how.from_the_end ? keys - rows : 0;
  const Tensor ahead = at::arange(keys) - at::arange(rows).unsqueeze(1) - shift;
  Tensor hidden = at::zeros({rows, keys}, at::kBool);
  if (how.causal) hidden.logical_or_(ahead > 0);
  if (how.right) hidden.logical_or_(ahead > *how.right);
  if (how.left) hidden.logical_or_(ahead < -*how.left);
  return scores.masked_fill(hidden, -kInfinite);
}

// Of one sample: out [rows, heads, width], and the logarithms of sums [heads, rows].
std::pair<Tensor, Tensor> forward_one(const Tensor& query, const Tensor& key, const Tensor& value,
                                      const Scores& how) {
  const int64_t heads = query.size(1);
  const Tensor q = with_heads(query, heads), k = with_heads(key, heads),
               v = with_heads(value, heads);
  const Tensor scores = scores_of(q, k, how), sums = at::logsumexp(scores, {2});
  const Tensor p = at::nan_to_num(at::exp(scores - sums.unsqueeze(2)), 0.0);
  return {at::matmul(p, v).transpose(0, 1).to(query.scalar_type()), sums};
}

struct Grads {
  Tensor query, key, value;
};
Grads backward_one(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                   const Tensor& out, const Tensor& sums, const Scores& how) {
  const int64_t heads = query.size(1);
  const Tensor q = with_heads(query, heads), k = with_heads(key, heads),
               v = with_heads(value, heads), g = with_heads(grad, heads),
               o = with_heads(out, heads);
  const Tensor p = at::nan_to_num(at::exp(scores_of(q, k, how) - sums.unsqueeze(2)), 0.0);
  const Tensor ds = p * (at::matmul(g, v.transpose(1, 2)) - (g * o).sum(2, true)) * how.scale;
  auto grouped = [&](const Tensor& x, const Tensor& like) {
    return x.view({like.size(1), heads / like.size(1), x.size(1), x.size(2)})
        .sum(1)
        .transpose(0, 1)
        .to(like.scalar_type());
  };
  return {grouped(at::matmul(ds, k), query), grouped(at::matmul(ds.transpose(1, 2), q), key),
          grouped(at::matmul(p.transpose(1, 2), g), value)};
}

// The kernels read 16 bytes at a time.
void check_aligned(std::initializer_list<Tensor> all, const char* message) {
  for (const Tensor& x : all) {
    const int64_t several = 16 / x.element_size();
    bool aligned = x.stride(-1) == 1 && x.size(-1) % several == 0 &&
                   reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
    for (int64_t d = 0; d + 1 < x.dim(); ++d) aligned = aligned && x.stride(d) % several == 0;
    TORCH_CHECK(aligned, message);
  }
}
constexpr auto kNoKernel = "cutlassF: no kernel found to launch!";
constexpr auto kFlashHeads =
    "flash attention takes heads of a multiple of 8, at multiples of 16 bytes";

// The memory-efficient operators: mask 0 is none, 1 and 2 are causal.
Scores efficient(const MaybeTensor& bias, int64_t sample, int64_t mask, double scale,
                 MaybeInt window) {
  Scores out;
  out.scale = scale;
  out.causal = mask != 0;
  out.from_the_end = mask == 2;
  if (window) out.left = *window - 1;
  if (bias && bias->defined()) out.bias = bias->select(0, sample);
  return out;
}

// These have the signatures of LibTorch's operators.
// NOLINTBEGIN(performance-unnecessary-value-param)
std::tuple<Tensor, Tensor, Tensor, Tensor, SymInt, SymInt> efficient_forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& bias,
    const MaybeTensor&, const MaybeTensor&, MaybeSymInt, MaybeSymInt, double, int64_t mask, bool,
    std::optional<double> scale, const MaybeTensor&, MaybeInt window) {
  check_aligned({query, key, value}, kNoKernel);
  const int64_t samples = query.size(0), rows = query.size(1), padded = (rows + 31) / 32 * 32;
  Tensor out = at::empty({samples, rows, query.size(2), value.size(3)}, query.options());
  Tensor sums =
      at::full({samples, query.size(2), padded}, kInfinite, query.options().dtype(at::kFloat));
  for (int64_t b = 0; b < samples; ++b) {
    auto [o, s] = forward_one(query[b], key[b], value[b],
                              efficient(bias, b, mask, scale_of(scale, query), window));
    out[b].copy_(o);
    sums[b].narrow(1, 0, rows).copy_(s);
  }
  return {out, sums, at::zeros({}, at::kLong), at::zeros({}, at::kLong), rows, key.size(1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
    const MaybeTensor& bias, const Tensor& out, const MaybeTensor&, const MaybeTensor&, SymInt,
    SymInt, const Tensor& sums, double, const Tensor&, const Tensor&, int64_t mask, bool,
    std::optional<double> scale, MaybeInt, MaybeInt window, bool) {
  check_aligned({query, key, value, grad, out}, kNoKernel);
  Tensor dq = at::empty_like(query), dk = at::empty_like(key), dv = at::empty_like(value);
  for (int64_t b = 0; b < query.size(0); ++b) {
    const Grads grads = backward_one(grad[b], query[b], key[b], value[b], out[b],
                                     sums[b].narrow(1, 0, query.size(1)),
                                     efficient(bias, b, mask, scale_of(scale, query), window));
    dq[b].copy_(grads.query);
    dk[b].copy_(grads.key);
    dv[b].copy_(grads.value);
  }
  return {dq, dk, dv, Tensor()};
}

Scores flash(bool causal, double scale, const MaybeSymInt& left, const MaybeSymInt& right) {
  Scores out;
  out.scale = scale;
  out.causal = causal;
  if (left && left->expect_int() >= 0) out.left = left->expect_int();
  if (right && right->expect_int() >= 0) out.right = right->expect_int();
  return out;
}

// One sample of a batch, or of rows one after the other with sums that tell where each begins.
struct Sample {
  bool dense = true;
  int64_t index = 0;          // dense
  int64_t row = 0, rows = 0;  // else: of queries,
  int64_t key = 0, keys = 0;  // and of keys
  Tensor of_query(const Tensor& x) const { return dense ? x[index] : x.narrow(0, row, rows); }
  Tensor of_key(const Tensor& x) const { return dense ? x[index] : x.narrow(0, key, keys); }
  Tensor of_sums(const Tensor& x) const { return dense ? x[index] : x.narrow(1, row, rows); }
};
std::vector<Sample> samples_of(const Tensor& query, const Tensor& sums_q, const Tensor& sums_k) {
  std::vector<Sample> out;
  if (!sums_q.defined()) {
    for (int64_t b = 0; b < query.size(0); ++b) out.push_back({.index = b});
    return out;
  }
  auto number = [](const Tensor& sums, int64_t i) { return sums[i].item<int64_t>(); };
  for (int64_t d = 0; d + 1 < sums_q.numel(); ++d) {
    const int64_t row = number(sums_q, d), key = number(sums_k, d);
    out.push_back({.dense = false,
                   .row = row,
                   .rows = number(sums_q, d + 1) - row,
                   .key = key,
                   .keys = number(sums_k, d + 1) - key});
  }
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> flash_forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor& sums_q,
    const MaybeTensor& sums_k, SymInt, SymInt, double, bool causal, bool,
    std::optional<double> scale, MaybeSymInt left, MaybeSymInt right, const MaybeTensor&,
    const MaybeTensor&) {
  check_aligned({query, key, value}, kFlashHeads);
  const bool dense = query.dim() == 4;
  Tensor out = at::empty(query.sizes(), query.options());
  const auto options = query.options().dtype(at::kFloat);
  Tensor sums = dense ? at::empty({query.size(0), query.size(2), query.size(1)}, options)
                      : at::empty({query.size(1), query.size(0)}, options);
  const Scores how = flash(causal, scale_of(scale, query), left, right);
  for (const Sample& sample :
       samples_of(query, sums_q.value_or(Tensor()), sums_k.value_or(Tensor()))) {
    auto [o, s] =
        forward_one(sample.of_query(query), sample.of_key(key), sample.of_key(value), how);
    sample.of_query(out).copy_(o);
    sample.of_sums(sums).copy_(s);
  }
  return {out, sums, at::zeros({2}, at::kLong), at::zeros({}, at::kLong),
          at::empty({0}, query.options())};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& out, const Tensor& sums, const Tensor& sums_q, const Tensor& sums_k, SymInt,
    SymInt, double, bool causal, const Tensor&, const Tensor&, std::optional<double> scale,
    MaybeSymInt left, MaybeSymInt right) {
  check_aligned({query, key, value, grad, out}, kFlashHeads);
  Tensor dq = at::empty_like(query), dk = at::empty_like(key), dv = at::empty_like(value);
  const Scores how = flash(causal, scale_of(scale, query), left, right);
  for (const Sample& sample : samples_of(query, sums_q, sums_k)) {
    const Grads grads =
        backward_one(sample.of_query(grad), sample.of_query(query), sample.of_key(key),
                     sample.of_key(value), sample.of_query(out), sample.of_sums(sums), how);
    sample.of_query(dq).copy_(grads.query);
    sample.of_key(dk).copy_(grads.key);
    sample.of_key(dv).copy_(grads.value);
  }
  return {dq, dk, dv};
}

// cuDNN's: heads come before rows, which begin together with the keys.
std::tuple<Tensor, Tensor, Tensor, Tensor, SymInt, SymInt, Tensor, Tensor, Tensor> cudnn_forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const MaybeTensor&,
    const MaybeTensor&, const MaybeTensor&, SymInt rows, SymInt keys, bool, double, bool causal,
    bool, std::optional<double> scale) {
  auto [out, sums, seed, offset, mask] =
      flash_forward(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), {}, {}, rows,
                    keys, 0, causal, false, scale, std::nullopt, std::nullopt, {}, {});
  const Tensor none = at::zeros({}, at::kLong);
  return {
      out.transpose(1, 2), sums.unsqueeze(3), Tensor(), Tensor(), rows, keys, none, none, Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> cudnn_backward(const Tensor& grad, const Tensor& query,
                                                  const Tensor& key, const Tensor& value,
                                                  const Tensor& out, const Tensor& sums,
                                                  const Tensor&, const Tensor&, const Tensor&,
                                                  const Tensor&, const Tensor&, SymInt rows,
                                                  SymInt keys, double, bool causal,
                                                  std::optional<double> scale) {
  TORCH_CHECK(sums.dim() == 4, "cuDNN's sums are [batch, heads, rows, 1]");
  // Its plans are found without the strides of these two.
  TORCH_CHECK(grad.transpose(1, 2).is_contiguous() && out.transpose(1, 2).is_contiguous(),
              "cuDNN's attention is given other strides than its plan was made for");
  auto [dq, dk, dv] =
      flash_backward(grad.transpose(1, 2), query.transpose(1, 2), key.transpose(1, 2),
                     value.transpose(1, 2), out.transpose(1, 2), sums.squeeze(3), {}, {}, rows,
                     keys, 0, causal, {}, {}, scale, std::nullopt, std::nullopt);
  return {dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)};
}

// NOLINTEND(performance-unnecessary-value-param)

}  // namespace

TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("_efficient_attention_forward", TORCH_FN(efficient_forward));
  m.impl("_efficient_attention_backward", TORCH_FN(efficient_backward));
  m.impl("_cudnn_attention_forward", TORCH_FN(cudnn_forward));
  m.impl("_cudnn_attention_backward", TORCH_FN(cudnn_backward));
  m.impl("_flash_attention_forward", TORCH_FN(flash_forward));
  m.impl("_flash_attention_backward", TORCH_FN(flash_backward));
}
