// What a dense layer, experts and the loss run on a device beside their matrix products:
// milliseconds, and the bytes that have to pass over the memory at least as a share of what a plain
// copy moves. At the sizes of Llama 3.2 1B, bfloat16; attention in TFLOP/s.
//   bench_device_kernels [TOKENS HIDDEN FFN VOCABULARY]
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/launch/device/device.h"
#include "engine/models/running/activation.h"
#include "meshwright/nn/attention.h"
#include "meshwright/nn/layers.h"
#include "meshwright/nn/loss.h"
#include "meshwright/nn/moe.h"
#include "meshwright/nn/rotary.h"
#include "sdk/base/kernels/arguments.h"
#include "sdk/base/own_kernels.h"
#include "sdk/base/residual.h"

using namespace meshwright;
using at::Tensor;

namespace {

struct Sizes {
  int64_t tokens = 32768, hidden = 2048, ffn = 8192, vocabulary = 65536;
};
constexpr int64_t kHeadDim = 64, kQueryPerKey = 4;

// Milliseconds of one call, of many that follow each other without a wait.
double milliseconds(const cuda::CudaPart& part, const std::function<void()>& body) {
  constexpr int kWarm = 3, kRounds = 5, kCalls = 10;
  for (int i = 0; i < kWarm; ++i) body();
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    part.synchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) body();
    part.synchronize();
    rounds.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
            .count() /
        kCalls);
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[kRounds / 2];
}

// Forward and backward apart: backward is both less the forward.
struct Times {
  double forward = 0, backward = 0;
};
Times both(const cuda::CudaPart& part, const std::vector<Tensor>& leaves, const Tensor& grad,
           const std::function<Tensor()>& run) {
  Times out;
  out.forward = milliseconds(part, [&] { run(); });
  out.backward = milliseconds(part,
                              [&] {
                                run().backward(grad);
                                for (const Tensor& leaf : leaves) leaf.mutable_grad() = Tensor();
                              }) -
                 out.forward;
  return out;
}

class Table {
 public:
  explicit Table(double copied) : copied_(copied) {
    std::printf("a copy moves %.0f GB/s\n", copied / 1e9);
    std::printf("%-28s %10s %12s %9s %9s\n", "", "ms", "least bytes", "GB/s", "of copy");
  }
  void row(const std::string& name, double ms, double bytes) const {
    const double rate = bytes / ms * 1e3;
    std::printf("%-28s %10.3f %12.0f %9.0f %8.0f%%\n", name.c_str(), ms, bytes, rate / 1e9,
                100 * rate / copied_);
  }
  void rows(const std::string& name, const Times& times, double there, double back) const {
    row(name + " forward", times.forward, there);
    row(name + " backward", times.backward, back);
  }

 private:
  double copied_;
};

double bytes(const Tensor& t) { return static_cast<double>(t.nbytes()); }

// Rows of tokens by expert and back, what experts do between their products, and the products of
// float32 experts that are small enough for one launch. Backward takes and adds up rows, too.
void measure_experts(const cuda::CudaPart& part, const Sizes& s, const Table& table) {
  constexpr int64_t kExperts = 8, kActive = 2, kRowsOfSmall = 64;
  const c10::NoGradGuard no_grad;
  const auto options = at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA, 0),
             wide = options.dtype(at::kFloat);
  const Tensor x = at::randn({s.tokens, s.hidden}, options);
  const ExpertOrder order = sort_without_counts(
      at::randint(kExperts, {s.tokens, kActive}, options.dtype(at::kLong)), kExperts);
  const Tensor rows = gather_tokens(x, order);
  table.row("take_rows", milliseconds(part, [&] { gather_tokens(x, order); }),
            bytes(x) + bytes(rows) + bytes(order.token));
  table.row("combine_rows", milliseconds(part, [&] { combine_tokens(rows, order); }),
            bytes(rows) + bytes(x) + bytes(order.place));

  const int64_t all = rows.size(0), inner = std::max(s.ffn / 4, kHeadDim);
  const Tensor h = at::randn({all, 2 * inner}, options), grad = at::randn({all, inner}, options),
               weights = at::randn({all}, wide), to_h = at::empty_like(h),
               active = at::empty_like(grad), to_weights = at::empty_like(weights),
               a = at::randn({kExperts * kRowsOfSmall, s.hidden}, wide),
               b = at::randn({kExperts, s.hidden, 2 * inner}, wide),
               product = at::empty({a.size(0), b.size(2)}, wide),
               bounds = at::arange(0, a.size(0) + 1, kRowsOfSmall, options.dtype(at::kInt));
  const std::optional<OwnKernels> own = OwnKernels::of(h, {inner}),
                                  own_wide = OwnKernels::of(a, {4});
  if (!own || !own_wide) {
    std::printf("%-28s kernels of our own do not run here\n", "weighted_swiglu");
    return;
  }
  const int64_t blocks = ceil_divide(all, kernels::kBlock / 32);
  const kernels::WeightedSwiglu there{.h = h.const_data_ptr(),
                                      .weights = weights.const_data_ptr<float>(),
                                      .out = active.mutable_data_ptr(),
                                      .rows = all,
                                      .size = inner};
  const kernels::WeightedSwigluBackward back{.h = h.const_data_ptr(),
                                             .grad = grad.const_data_ptr(),
                                             .weights = weights.const_data_ptr<float>(),
                                             .to_h = to_h.mutable_data_ptr(),
                                             .weighted = active.mutable_data_ptr(),
                                             .to_weights = to_weights.mutable_data_ptr<float>(),
                                             .rows = all,
                                             .size = inner};
  table.rows("weighted_swiglu",
             {milliseconds(part, [&] { own->launch("weighted_swiglu", blocks, there); }),
              milliseconds(part, [&] { own->launch("weighted_swiglu_backward", blocks, back); })},
             bytes(h) + bytes(weights) + bytes(active),
             2 * bytes(h) + 2 * bytes(weights) + bytes(grad) + bytes(active));

  using kernels::GroupedProduct;
  const GroupedProduct grouped{.a = a.const_data_ptr<float>(),
                               .b = b.const_data_ptr<float>(),
                               .out = product.mutable_data_ptr<float>(),
                               .bounds = bounds.const_data_ptr<int32_t>(),
                               .rows = a.size(0),
                               .width = b.size(2),
                               .inner = b.size(1),
                               .b_inner = b.stride(1),
                               .b_column = b.stride(2),
                               .groups = static_cast<int>(kExperts)};
  const int64_t tiles = (a.size(0) / GroupedProduct::kTile + kExperts) *
                        ceil_divide(b.size(2), GroupedProduct::kTile);
  const double grouped_ms = milliseconds(part, [&] {
    own_wide->launch("grouped_product", tiles, grouped,
                     GroupedProduct::kFloats * static_cast<int64_t>(sizeof(float)));
  });
  table.row("grouped_product, float32", grouped_ms,
            bytes(a) + bytes(b) + bytes(product) + bytes(bounds));
  const auto work = static_cast<double>(2 * a.size(0) * b.size(1) * b.size(2));
  std::printf("%-28s %10.3f %34.1f TFLOP/s\n", "grouped_product, float32", grouped_ms,
              work / grouped_ms / 1e9);
}

void measure(const cuda::CudaPart& part, const Sizes& s) {
  const auto options = at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA, 0);
  auto leaf = [&](at::IntArrayRef sizes) {
    return at::randn(sizes, options).set_requires_grad(true);
  };
  const Tensor from = at::randn({s.tokens, s.vocabulary}, options), to = at::empty_like(from);
  const Table table(2 * bytes(from) / milliseconds(part, [&] { to.copy_(from); }) * 1e3);

  const Tensor x = leaf({1, s.tokens, s.hidden}), grad = at::randn(x.sizes(), options);
  RMSNorm norm(s.hidden, 1e-5);
  norm->to(options.device(), at::kBFloat16);
  table.rows("RMSNorm", both(part, {x, norm->weight}, grad, [&] { return norm(x); }), 2 * bytes(x),
             3 * bytes(x));

  // What a layer has between its blocks: the stream and what comes to it, their sum and its norm.
  const Tensor more = at::randn(x.sizes(), options), of_sum = at::randn(x.sizes(), options);
  Times summed;
  summed.forward = milliseconds(part, [&] { add_and_norm(x, more, norm); });
  summed.backward = milliseconds(part,
                                 [&] {
                                   auto [sum, y] = add_and_norm(x, more, norm);
                                   torch::autograd::backward({sum, y}, {of_sum, grad});
                                   for (const Tensor& t : {x, norm->weight})
                                     t.mutable_grad() = Tensor();
                                 }) -
                    summed.forward;
  table.rows("sum and RMSNorm", summed, 4 * bytes(x), 4 * bytes(x));

  const int64_t heads = s.hidden / kHeadDim, kv = std::max<int64_t>(heads / kQueryPerKey, 1);
  const Tensor query = leaf({1, s.tokens, heads, kHeadDim}),
               key = leaf({1, s.tokens, kv, kHeadDim}), value = leaf({1, s.tokens, kv, kHeadDim}),
               of_heads = at::randn(query.sizes(), options);
  RopeConfig config;
  config.dim = kHeadDim;
  RotaryEmbedding rotary(std::vector<RopeConfig>{config});
  const RotaryTable angles = rotary(query, s.tokens, 0);
  const double turned = 2 * (bytes(query) + bytes(key));
  Times turning;
  turning.forward = milliseconds(part, [&] { rotate(query, key, angles); });
  turning.backward = milliseconds(part,
                                  [&] {
                                    auto [q, k] = rotate(query, key, angles);
                                    torch::autograd::backward({q, k}, {of_heads, key.detach()});
                                    for (const Tensor& t : {query, key})
                                      t.mutable_grad() = Tensor();
                                  }) -
                     turning.forward;
  table.rows("rotary embedding", turning, turned, turned);

  const Tensor gate = leaf({1, s.tokens, s.ffn}), up = leaf({1, s.tokens, s.ffn}),
               of_mlp = at::randn(gate.sizes(), options);
  modules::GatedActivation silu("silu");
  table.rows("SwiGLU", both(part, {gate, up}, of_mlp, [&] { return silu(gate, up); }),
             3 * bytes(gate), 5 * bytes(gate));

  const Tensor logits = from.detach().set_requires_grad(true),
               targets = at::randint(s.vocabulary, {s.tokens}, options.dtype(at::kLong));
  table.rows("cross entropy",
             both(part, {logits}, {}, [&] { return cross_entropy_sum(logits, targets); }),
             bytes(logits), 2 * bytes(logits));

  measure_experts(part, s, table);

  // Samples of a quarter of the tokens; rows as they are for the other kernels.
  const int64_t samples = s.tokens % 4 == 0 ? 4 : 1, length = s.tokens / samples;
  const auto sampled = [&](const Tensor& t) {
    return t.detach().view({samples, length, t.size(2), kHeadDim}).set_requires_grad(true);
  };
  const Tensor q = sampled(query), k = sampled(key), v = sampled(value),
               of_samples = of_heads.view(q.sizes());
  AttentionCore core(AttentionOptions{.scale = 1 / std::sqrt(static_cast<double>(kHeadDim))});
  const Times attention = both(part, {q, k, v}, of_samples, [&] { return core(q, k, v); });
  const auto products =
      static_cast<double>(2 * samples * length * length * s.hidden);  // causal: half
  std::printf("%-28s %10.3f %34.0f TFLOP/s\n", "attention forward", attention.forward,
              products / attention.forward / 1e9);
  std::printf("%-28s %10.3f %34.0f TFLOP/s\n", "attention backward", attention.backward,
              2.5 * products / attention.backward / 1e9);
}

}  // namespace

int main(int argc, char** argv) {
  Sizes sizes;
  const std::array<int64_t*, 4> fields{&sizes.tokens, &sizes.hidden, &sizes.ffn, &sizes.vocabulary};
  for (int i = 1; i < argc && i <= 4; ++i)
    *fields[static_cast<size_t>(i - 1)] =
        std::max<int64_t>(std::strtoll(argv[i], nullptr, 10), kHeadDim);
  std::string why;
  const cuda::CudaPart* part = device::cuda_part(&why);
  if (part == nullptr || part->device_count() == 0) {
    std::fprintf(stderr, "bench_device_kernels: %s\n",
                 part != nullptr ? "there is no CUDA device" : why.c_str());
    return 1;
  }
  part->use_device(0);
  std::printf("%s: %ld tokens, hidden %ld, mlp %ld, vocabulary %ld, bfloat16\n",
              part->device_name(0).c_str(), static_cast<long>(sizes.tokens),
              static_cast<long>(sizes.hidden), static_cast<long>(sizes.ffn),
              static_cast<long>(sizes.vocabulary));
  measure(*part, sizes);
  return 0;
}
