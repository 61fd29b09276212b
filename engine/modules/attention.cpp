#include "engine/modules/attention.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>
#include <optional>

#include "engine/modules/attention_kernel.h"

namespace meshwright::modules {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor with_dense_heads(const Tensor& x) { return x.stride(3) == 1 ? x : x.contiguous(); }

HeadView head_view(const Tensor& x, int64_t batch, int64_t head) {
  return {x.const_data_ptr<float>() + batch * x.stride(0) + head * x.stride(2), x.stride(1),
          x.stride(2)};
}
MutableHeadView mutable_head_view(const Tensor& x, int64_t batch, int64_t head) {
  return {x.mutable_data_ptr<float>() + batch * x.stride(0) + head * x.stride(2), x.stride(1),
          x.stride(2)};
}

AttentionSizes sizes_of(const Tensor& query, const Tensor& key, double scale, int64_t window) {
  return {query.size(1), query.size(3), query.size(2) / key.size(2), window,
          static_cast<float>(scale)};
}

// f(batch, key-value head, first query head of its group) for all of them.
template <class F>
void each_head(const Tensor& key, int64_t group, F f) {
  int64_t heads = key.size(2);
  at::parallel_for(0, key.size(0) * heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i / heads, i % heads, i % heads * group);
  });
}

struct FusedAttention : torch::autograd::Function<FusedAttention> {
  static Tensor forward(AutogradContext* context, const Tensor& given_query,
                        const Tensor& given_key, const Tensor& given_value, double scale,
                        int64_t window) {
    Tensor query = with_dense_heads(given_query), key = with_dense_heads(given_key),
           value = with_dense_heads(given_value);
    AttentionSizes sizes = sizes_of(query, key, scale, window);
    Tensor out = at::empty(query.sizes(), query.options());
    Tensor log_sums = at::empty({query.size(0), query.size(2), sizes.length}, query.options());
    float* log_sum = log_sums.mutable_data_ptr<float>();
    each_head(key, sizes.group, [&](int64_t b, int64_t head, int64_t first) {
      attention_forward(sizes, head_view(query, b, first), head_view(key, b, head),
                        head_view(value, b, head), mutable_head_view(out, b, first),
                        log_sum + (b * query.size(2) + first) * sizes.length);
    });
    context->save_for_backward({query, key, value, out, log_sums});
    context->saved_data["scale"] = scale;
    context->saved_data["window"] = window;
    return out;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    variable_list saved = context->get_saved_variables();
    const Tensor &query = saved[0], &key = saved[1], &value = saved[2], &out = saved[3],
                 &log_sums = saved[4];
    Tensor grad = with_dense_heads(grads[0]);
    AttentionSizes sizes = sizes_of(query, key, context->saved_data["scale"].toDouble(),
                                    context->saved_data["window"].toInt());
    Tensor to_query = at::empty(query.sizes(), query.options()),
           to_key = at::empty(key.sizes(), key.options()),
           to_value = at::empty(value.sizes(), value.options());
    const float* log_sum = log_sums.const_data_ptr<float>();
    each_head(key, sizes.group, [&](int64_t b, int64_t head, int64_t first) {
      attention_backward(sizes, head_view(query, b, first), head_view(key, b, head),
                         head_view(value, b, head), head_view(out, b, first),
                         log_sum + (b * query.size(2) + first) * sizes.length,
                         head_view(grad, b, first), mutable_head_view(to_query, b, first),
                         mutable_head_view(to_key, b, head), mutable_head_view(to_value, b, head));
    });
    return {to_query, to_key, to_value, Tensor(), Tensor()};
  }
};

bool plain(const Tensor& t) { return t.is_cpu() && t.scalar_type() == at::kFloat && t.numel() > 0; }

}  // namespace

Tensor WindowMasks::mask(const Tensor& like, int64_t length, int64_t window) {
  for (const Kept& k : kept_)
    if (k.length == length && k.window == window && k.mask.device() == like.device() &&
        k.mask.scalar_type() == like.scalar_type())
      return k.mask;
  c10::InferenceMode no_inference(false);  // later steps save the mask for backward
  c10::NoGradGuard no_grad;
  Tensor all = at::ones({length, length}, like.options().dtype(at::kBool));
  Tensor unseen = all.tril().logical_and(all.triu(1 - window)).logical_not();
  Tensor mask = at::zeros({length, length}, like.options())
                    .masked_fill(unseen, -std::numeric_limits<double>::infinity());
  constexpr size_t kKept = 4;  // training and validation lengths; sampling goes through many
  if (kept_.size() == kKept) kept_.erase(kept_.begin());
  return kept_.emplace_back(length, window, mask).mask;
}

Tensor causal_attention(const Tensor& query, const Tensor& key, const Tensor& value, double scale,
                        int64_t window, double dropout, WindowMasks& masks) {
  int64_t length = query.size(1);
  if (window >= length) window = 0;
  if (dropout == 0 && plain(query) && plain(key) && plain(value) &&
      attention_kernel_available(query.size(3)) && !at::autocast::is_autocast_enabled(at::kCPU))
    return FusedAttention::apply(query, key, value, scale, window);
  std::optional<Tensor> mask;
  if (window > 0) mask = masks.mask(query, length, window);
  return at::scaled_dot_product_attention(
             query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), mask, dropout,
             /*is_causal=*/!mask.has_value(), scale, query.size(2) != key.size(2))
      .transpose(1, 2);
}

}  // namespace meshwright::modules
