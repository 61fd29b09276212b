// Flash attention as its kernels document it, by plain tensors: what the operators of devices are
// given and what they make of it.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logsumexp.h>

#include <atomic>
#include <limits>
#include <tuple>
#include <vector>

#include "sdk/nn/attention_blocks.h"

namespace meshwright::attention_blocks_model {

// Bounds as FlashAttention-2 reads them: one of `keys` or more is none, and none beside another
// bound is `keys`.
inline detail::AttentionBand as_flash_reads(detail::AttentionBand band, int64_t keys) {
  constexpr int64_t kOpen = detail::AttentionBand::kOpen;
  if (band.left >= keys) band.left = kOpen;
  if (band.right >= keys) band.right = kOpen;
  if (band.left == kOpen && band.right != kOpen) band.left = keys;
  if (band.right == kOpen && band.left != kOpen) band.right = keys;
  return band;
}

class FlashModel final : public detail::AttentionOperators {
 public:
  detail::AttentionResult forward(const detail::AttentionCall& call) const override {
    ++forwards;
    std::vector<at::Tensor> outs, lses;
    for (const detail::AttentionCall& one : documents_of(call)) {
      auto [scores, value] = scores_of(one);
      at::Tensor lse = scores.logsumexp(-1);
      at::Tensor weights = at::exp(scores - lse.unsqueeze(-1));
      outs.push_back(at::einsum("bhij,bjhd->bihd", {weights, value}));
      // As the kernels have it, which no block may contain.
      lses.push_back(lse.masked_fill(lse == -kInfinity, std::numeric_limits<double>::infinity()));
    }
    at::Tensor out = at::cat(outs, 1).view(call.query.sizes()).to(call.query.scalar_type());
    at::Tensor lse = at::cat(lses, 2);
    if (!call.documents.empty())
      lse = lse.view({lse.size(1), call.query.size(0), -1}).transpose(0, 1);
    last_out = out.data_ptr();
    return {out, lse};
  }

  detail::AttentionGradients backward(const detail::AttentionCall& call,
                                      const detail::AttentionResult& result,
                                      const at::Tensor& grad) const override {
    ++backwards;
    const at::ScalarType type = result.lse.scalar_type();
    at::Tensor out = result.out.to(type), to_out = grad.to(type), lse = result.lse;
    if (!call.documents.empty()) {
      const int64_t rows = out.size(0) * out.size(1);
      auto in_line = [&](at::Tensor& x) { x = x.reshape({1, rows, x.size(2), x.size(3)}); };
      in_line(out), in_line(to_out);
      lse = lse.transpose(0, 1).reshape({1, lse.size(1), rows});
    }
    std::vector<at::Tensor> to_query, to_key, to_value;
    int64_t begin = 0;
    for (const detail::AttentionCall& one : documents_of(call)) {
      const int64_t rows = one.query.size(1), group = one.query.size(2) / one.key.size(2);
      auto mine = [&](const at::Tensor& x) { return x.narrow(1, begin, rows); };
      auto [scores, value] = scores_of(one);
      at::Tensor weights = at::exp(scores - lse.narrow(2, begin, rows).unsqueeze(-1));
      at::Tensor delta = (mine(out) * mine(to_out)).sum(-1).transpose(1, 2).unsqueeze(-1);
      at::Tensor slope =
          weights * (at::einsum("bihd,bjhd->bhij", {mine(to_out), value}) - delta) * call.scale;
      at::Tensor key = one.key.to(type).repeat_interleave(group, 2);
      to_query.push_back(at::einsum("bhij,bjhd->bihd", {slope, key}));
      auto summed = [&](const at::Tensor& x) {
        return x.view({x.size(0), x.size(1), one.key.size(2), group, -1}).sum(3);
      };
      to_key.push_back(summed(at::einsum("bhij,bihd->bjhd", {slope, one.query.to(type)})));
      to_value.push_back(summed(at::einsum("bhij,bihd->bjhd", {weights, mine(to_out)})));
      begin += rows;
    }
    auto whole = [&](const std::vector<at::Tensor>& x, const at::Tensor& like) {
      return at::cat(x, 1).view(like.sizes()).to(like.scalar_type());
    };
    return {whole(to_query, call.query), whole(to_key, call.key), whole(to_value, call.value)};
  }

  mutable std::atomic<int> forwards = 0, backwards = 0;
  mutable std::atomic<void*> last_out = nullptr;

 private:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  // One call for each document; all rows and samples where there are none.
  static std::vector<detail::AttentionCall> documents_of(const detail::AttentionCall& call) {
    if (call.documents.empty()) return {call};
    std::vector<detail::AttentionCall> out;
    int64_t begin = 0;
    for (int64_t count : call.documents) {
      auto rows = [&](const at::Tensor& x) {
        return x.reshape({1, x.size(0) * x.size(1), x.size(2), x.size(3)}).narrow(1, begin, count);
      };
      out.push_back({.query = rows(call.query),
                     .key = rows(call.key),
                     .value = rows(call.value),
                     .scale = call.scale,
                     .band = call.band});
      begin += count;
    }
    return out;
  }
  // [batch, heads, rows, keys], minus infinity where a row does not see a key; and the values of
  // every head.
  static std::tuple<at::Tensor, at::Tensor> scores_of(const detail::AttentionCall& call) {
    const int64_t rows = call.query.size(1), keys = call.key.size(1),
                  group = call.query.size(2) / call.key.size(2);
    const at::ScalarType type = call.query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    at::Tensor query = call.query.to(type), key = call.key.to(type).repeat_interleave(group, 2),
               value = call.value.to(type).repeat_interleave(group, 2);
    const detail::AttentionBand band = as_flash_reads(call.band, keys);
    at::Tensor ahead = at::arange(keys) - at::arange(rows).unsqueeze(1) - (keys - rows);
    at::Tensor scores = at::einsum("bihd,bjhd->bhij", {query, key}) * call.scale;
    if (band.right != detail::AttentionBand::kOpen)
      scores = scores.masked_fill(ahead > band.right, -kInfinity);
    if (band.left != detail::AttentionBand::kOpen)
      scores = scores.masked_fill(ahead < -band.left, -kInfinity);
    return {scores, value};
  }
};

// These operators for all tensors while it lives.
class WithOperators {
 public:
  explicit WithOperators(const detail::AttentionOperators& operators) {
    detail::set_attention_operators(&operators);
  }
  ~WithOperators() { detail::set_attention_operators(nullptr); }
  WithOperators(const WithOperators&) = delete;
  WithOperators& operator=(const WithOperators&) = delete;
};

}  // namespace meshwright::attention_blocks_model
