#include "attention_blocks.h"

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_cudnn_attention_backward.h>
#include <ATen/ops/_cudnn_attention_forward.h>
#include <ATen/ops/_efficient_attention_backward.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

namespace meshwright::detail {

namespace {

using at::Tensor;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

std::optional<int64_t> bound_of(int64_t bound) {
  return bound == AttentionBand::kOpen ? std::nullopt : std::optional<int64_t>(bound);
}
bool is_causal(const AttentionBand& band) {
  return band == AttentionBand{.left = AttentionBand::kOpen, .right = 0};
}

// [batch, heads, rows] of documents in a row, one sample after the other: [heads, batch * rows],
// and back.
Tensor lse_in_line(const Tensor& lse) {
  return lse.transpose(0, 1).reshape({lse.size(1), -1}).contiguous();
}
Tensor lse_of_samples(const Tensor& lse, int64_t batch) {
  return lse.view({lse.size(0), batch, -1}).transpose(0, 1);
}

// As kernels that load 16 bytes at a time read it: heads of a multiple of that (more elements of 0
// change no score), and every row at such an address.
Tensor aligned(const Tensor& x) {
  const int64_t several = 16 / x.element_size();
  if (const int64_t rest = x.size(3) % several; rest > 0)
    return at::constant_pad_nd(x, {0, several - rest});
  const bool loads = x.stride(3) == 1 && x.stride(0) % several == 0 && x.stride(1) % several == 0 &&
                     x.stride(2) % several == 0 &&
                     reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
  return loads ? x : x.clone(at::MemoryFormat::Contiguous);
}

class FlashOperators final : public AttentionOperators {
 public:
  static constexpr int64_t kLargestHead = 256;

  AttentionResult forward(const AttentionCall& call) const override {
    const int64_t head_dim = call.query.size(3);
    Tensor query = aligned(call.query), key = aligned(call.key), value = aligned(call.value);
    const bool causal = is_causal(call.band);
    std::optional<int64_t> left = bound_of(call.band.left),
                           right = causal ? std::nullopt : bound_of(call.band.right);
    if (call.documents.empty()) {
      auto result = at::_flash_attention_forward(
          query, key, value, std::nullopt, std::nullopt, query.size(1), key.size(1),
          /*dropout_p=*/0, causal, /*return_debug_mask=*/false, call.scale, left, right);
      return {std::get<0>(result).narrow(3, 0, head_dim), std::get<1>(result)};
    }
    const Lengths lengths = lengths_of(call);
    auto result = at::_flash_attention_forward(
        query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), lengths.sums, lengths.sums,
        lengths.longest, lengths.longest, /*dropout_p=*/0, causal, /*return_debug_mask=*/false,
        call.scale, left, right);
    return {std::get<0>(result).view(query.sizes()).narrow(3, 0, head_dim),
            lse_of_samples(std::get<1>(result), query.size(0))};
  }

  AttentionGradients backward(const AttentionCall& call, const AttentionResult& result,
                              const Tensor& grad) const override {
    const int64_t head_dim = call.query.size(3);
    Tensor query = aligned(call.query), key = aligned(call.key), value = aligned(call.value);
    Tensor out = aligned(result.out), to_out = aligned(grad), lse;
    const bool causal = is_causal(call.band);
    std::optional<int64_t> left = bound_of(call.band.left),
                           right = causal ? std::nullopt : bound_of(call.band.right);
    Lengths lengths{.longest = query.size(1)};
    int64_t longest_key = key.size(1);
    if (call.documents.empty()) {
      lse = result.lse.contiguous();
    } else {
      lengths = lengths_of(call);
      longest_key = lengths.longest;
      lse = lse_in_line(result.lse);
      for (Tensor* x : {&query, &key, &value, &out, &to_out}) *x = x->flatten(0, 1);
    }
    // Without dropout nothing reads what stands for the state of random numbers.
    Tensor unused = at::empty({0}, call.query.options().dtype(at::kLong));
    auto [to_query, to_key, to_value] = at::_flash_attention_backward(
        to_out, query, key, value, out, lse, lengths.sums, lengths.sums, lengths.longest,
        longest_key, /*dropout_p=*/0, causal, unused, unused, call.scale, left, right);
    auto shaped = [&](const Tensor& x, const Tensor& like) {
      return x.view({like.size(0), like.size(1), like.size(2), -1}).narrow(3, 0, head_dim);
    };
    return {shaped(to_query, call.query), shaped(to_key, call.key), shaped(to_value, call.value)};
  }

 private:
  struct Lengths {
    Tensor sums = {};  // int32: where documents begin in all rows, and the end
    int64_t longest = 0;
  };
  // All layers of a model share them: those of the last call of this thread are kept.
  static Lengths lengths_of(const AttentionCall& call) {
    static thread_local std::vector<int64_t> kept_documents;
    static thread_local Lengths kept;
    if (kept.sums.defined() && kept.sums.device() == call.query.device() &&
        kept_documents == call.documents)
      return kept;
    std::vector<int32_t> sums{0};
    for (int64_t length : call.documents)
      sums.push_back(sums.back() + static_cast<int32_t>(length));
    // For rows that are all documents of their own, forward would give lse in another order.
    kept.longest =
        std::max<int64_t>(2, *std::max_element(call.documents.begin(), call.documents.end()));
    // Pinned, so that the copy to a device keeps nobody waiting.
    const at::Device device = call.query.device();
    const Tensor host = at::empty(
        {std::ssize(sums)}, at::TensorOptions().dtype(at::kInt).pinned_memory(device.is_cuda()));
    std::copy(sums.begin(), sums.end(), host.mutable_data_ptr<int32_t>());
    kept.sums = host.to(device, at::kInt, /*non_blocking=*/true);
    kept_documents = call.documents;
    return kept;
  }
};

// cuDNN's attention for samples as training has them, in 0.65 of flash attention's time on an H100;
// what else there is goes to flash attention. Which of them follows from a call's shape alone, so
// that what is computed again has the same bits.
class CudnnOperators final : public AttentionOperators {
 public:
  explicit CudnnOperators(const AttentionOperators& others) : others_(others) {}

  AttentionResult forward(const AttentionCall& call) const override {
    if (!fits(call)) return others_.forward(call);
    const int64_t rows = call.query.size(1);
    auto result = at::_cudnn_attention_forward(
        heads_first(call.query), heads_first(call.key), heads_first(call.value), std::nullopt,
        std::nullopt, std::nullopt, rows, rows, /*compute_log_sumexp=*/true, /*dropout_p=*/0,
        is_causal(call.band), /*return_debug_mask=*/false, call.scale);
    return {std::get<0>(result).transpose(1, 2),
            std::get<1>(result).view({call.query.size(0), call.query.size(2), rows})};
  }

  AttentionGradients backward(const AttentionCall& call, const AttentionResult& result,
                              const Tensor& grad) const override {
    if (!fits(call)) return others_.backward(call, result, grad);
    const int64_t rows = call.query.size(1);
    // Without dropout nothing reads what stands for the state of random numbers.
    Tensor unused = at::empty({}, call.query.options().dtype(at::kLong));
    // LibTorch finds a plan by the strides of queries, keys and values: those of the others have to
    // be the same each time.
    auto [to_query, to_key, to_value] = at::_cudnn_attention_backward(
        heads_first(grad.contiguous()), heads_first(call.query), heads_first(call.key),
        heads_first(call.value), heads_first(result.out.contiguous()),
        result.lse.contiguous().unsqueeze(3), unused, unused, Tensor(), Tensor(), Tensor(), rows,
        rows, /*dropout_p=*/0, is_causal(call.band), call.scale);
    return {to_query.transpose(1, 2), to_key.transpose(1, 2), to_value.transpose(1, 2)};
  }

 private:
  // It makes a plan of 30 ms for each shape, and is faster on long rows alone.
  static bool fits(const AttentionCall& call) {
    constexpr int64_t kShortest = 1024, kSeveral = 256;
    const int64_t rows = call.query.size(1);
    return call.documents.empty() && is_causal(call.band) && rows == call.key.size(1) &&
           rows >= kShortest && rows % kSeveral == 0 && call.query.size(3) % 8 == 0;
  }
  static Tensor heads_first(const Tensor& x) { return aligned(x).transpose(1, 2); }

  const AttentionOperators& others_;
};

// Operators without groups of query heads and without lengths of documents.
class PlainOperators : public AttentionOperators {
 public:
  AttentionResult forward(const AttentionCall& call) const final {
    if (call.documents.empty()) return forward_one(with_all_heads(call));
    std::vector<Tensor> outs, lses;
    each_document(call, [&](const AttentionCall& one, int64_t, int64_t) {
      AttentionResult result = forward_one(with_all_heads(one));
      outs.push_back(result.out);
      lses.push_back(result.lse);
    });
    return {at::cat(outs, 1).view(call.query.sizes()),
            lse_of_samples(at::cat(lses, 2)[0], call.query.size(0))};
  }

  AttentionGradients backward(const AttentionCall& call, const AttentionResult& result,
                              const Tensor& grad) const final {
    if (call.documents.empty()) return backward_grouped(call, result, grad);
    Tensor out = result.out.flatten(0, 1), lse = lse_in_line(result.lse), to = grad.flatten(0, 1);
    std::array<std::vector<Tensor>, 3> found;
    each_document(call, [&](const AttentionCall& one, int64_t begin, int64_t count) {
      AttentionGradients some = backward_grouped(
          one, {out.narrow(0, begin, count).unsqueeze(0), lse.narrow(1, begin, count).unsqueeze(0)},
          to.narrow(0, begin, count).unsqueeze(0));
      found[0].push_back(some.query);
      found[1].push_back(some.key);
      found[2].push_back(some.value);
    });
    return {at::cat(found[0], 1).view(call.query.sizes()),
            at::cat(found[1], 1).view(call.key.sizes()),
            at::cat(found[2], 1).view(call.value.sizes())};
  }

 protected:
  // As many heads of keys as of queries.
  virtual AttentionResult forward_one(const AttentionCall& call) const = 0;
  virtual AttentionGradients backward_one(const AttentionCall& call, const AttentionResult& result,
                                          const Tensor& grad) const = 0;

  // Added to scores: [rows, keys], rows of memory aligned for any operator.
  static Tensor bias_of(const AttentionCall& call) {
    constexpr int64_t kAligned = 16;
    const int64_t rows = call.query.size(1), keys = call.key.size(1);
    at::TensorOptions integers = call.query.options().dtype(at::kLong);
    Tensor ahead =
        at::arange(keys, integers) - at::arange(rows, integers).unsqueeze(1) - (keys - rows);
    Tensor hidden = at::zeros({rows, keys}, call.query.options().dtype(at::kBool));
    if (call.band.right != AttentionBand::kOpen) hidden.logical_or_(ahead > call.band.right);
    if (call.band.left != AttentionBand::kOpen) hidden.logical_or_(ahead < -call.band.left);
    const int64_t width = (keys + kAligned - 1) / kAligned * kAligned;
    Tensor bias = at::zeros({rows, width}, call.query.options()).narrow(1, 0, keys);
    return bias.masked_fill_(hidden, -kInfinite);
  }

 private:
  static Tensor repeated(const Tensor& x, int64_t group) {
    if (group == 1) return x;
    return x.unsqueeze(3)
        .expand({x.size(0), x.size(1), x.size(2), group, x.size(3)})
        .reshape({x.size(0), x.size(1), x.size(2) * group, x.size(3)});
  }
  static AttentionCall with_all_heads(const AttentionCall& call) {
    const int64_t group = call.query.size(2) / call.key.size(2);
    AttentionCall all = call;
    all.key = repeated(call.key, group);
    all.value = repeated(call.value, group);
    return all;
  }
  AttentionGradients backward_grouped(const AttentionCall& call, const AttentionResult& result,
                                      const Tensor& grad) const {
    AttentionGradients found = backward_one(with_all_heads(call), result, grad);
    const int64_t heads = call.key.size(2), group = call.query.size(2) / heads;
    if (group == 1) return found;
    auto summed = [&](const Tensor& x) {
      return x.reshape({x.size(0), x.size(1), heads, group, x.size(3)})
          .sum(3, /*keepdim=*/false, result.lse.scalar_type());
    };
    return {found.query, summed(found.key), summed(found.value)};
  }
  template <class Visit>
  static void each_document(const AttentionCall& call, Visit&& visit) {
    Tensor query = call.query.flatten(0, 1), key = call.key.flatten(0, 1),
           value = call.value.flatten(0, 1);
    int64_t begin = 0;
    for (int64_t count : call.documents) {
      AttentionCall one{.query = query.narrow(0, begin, count).unsqueeze(0),
                        .key = key.narrow(0, begin, count).unsqueeze(0),
                        .value = value.narrow(0, begin, count).unsqueeze(0),
                        .scale = call.scale,
                        .band = call.band};
      if (one.band.left >= count - 1) one.band.left = AttentionBand::kOpen;
      visit(one, begin, count);
      begin += count;
    }
  }
};

class EfficientOperators final : public PlainOperators {
 protected:
  AttentionResult forward_one(const AttentionCall& call) const override {
    const Mask mask(call);
    auto result = at::_efficient_attention_forward(
        aligned(call.query), aligned(call.key), aligned(call.value), mask.bias, std::nullopt,
        std::nullopt, std::nullopt, std::nullopt, /*dropout_p=*/0, mask.type,
        /*compute_log_sumexp=*/true, call.scale, std::nullopt, mask.window);
    // Rows of lse are padded.
    return {std::get<0>(result).narrow(3, 0, call.query.size(3)),
            std::get<1>(result).narrow(2, 0, call.query.size(1))};
  }
  AttentionGradients backward_one(const AttentionCall& call, const AttentionResult& result,
                                  const Tensor& grad) const override {
    const Mask mask(call);
    const int64_t rows = call.query.size(1), head_dim = call.query.size(3);
    constexpr int64_t kAligned = 32;  // as forward gives them
    Tensor lse =
        at::constant_pad_nd(result.lse, {0, (kAligned - rows % kAligned) % kAligned}, kInfinite);
    Tensor unused = at::empty({0}, call.query.options().dtype(at::kLong));
    auto [to_query, to_key, to_value, to_bias] = at::_efficient_attention_backward(
        aligned(grad), aligned(call.query), aligned(call.key), aligned(call.value), mask.bias,
        aligned(result.out).contiguous(), std::nullopt, std::nullopt, rows, call.key.size(1),
        lse.contiguous(), /*dropout_p=*/0, unused, unused, mask.type,
        /*bias_requires_grad=*/false, call.scale, std::nullopt, mask.window);
    return {to_query.narrow(3, 0, head_dim), to_key.narrow(3, 0, head_dim),
            to_value.narrow(3, 0, head_dim)};
  }

 private:
  // The operator's own masks, or one of numbers. Windows are taken from the operator where rows and
  // keys are as many: elsewhere its backward counts them from the first row.
  struct Mask {
    enum Type : int64_t { none = 0, from_the_top = 1, from_the_bottom = 2 };
    int64_t type = none;
    std::optional<int64_t> window = {};
    std::optional<Tensor> bias = {};

    explicit Mask(const AttentionCall& call) {
      if (call.band == AttentionBand{}) return;
      const int64_t rows = call.query.size(1), keys = call.key.size(1);
      if (is_causal(call.band)) {
        type = from_the_bottom;
      } else if (call.band.right == 0 && rows == keys) {
        type = from_the_top;
        window = call.band.left + 1;
      } else {
        bias = bias_of(call).expand({call.query.size(0), call.query.size(2), rows, keys});
      }
    }
  };
};

class CpuOperators final : public PlainOperators {
 protected:
  AttentionResult forward_one(const AttentionCall& call) const override {
    auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        call.query.transpose(1, 2), call.key.transpose(1, 2), call.value.transpose(1, 2),
        /*dropout_p=*/0, is_plain(call), mask_of_call(call), call.scale);
    return {out.transpose(1, 2), lse};
  }
  AttentionGradients backward_one(const AttentionCall& call, const AttentionResult& result,
                                  const Tensor& grad) const override {
    auto [to_query, to_key, to_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        grad.transpose(1, 2), call.query.transpose(1, 2), call.key.transpose(1, 2),
        call.value.transpose(1, 2), result.out.transpose(1, 2), result.lse, /*dropout_p=*/0,
        is_plain(call), mask_of_call(call), call.scale);
    return {to_query.transpose(1, 2), to_key.transpose(1, 2), to_value.transpose(1, 2)};
  }

 private:
  static bool is_plain(const AttentionCall& call) {
    return is_causal(call.band) && call.query.size(1) == call.key.size(1);
  }
  static std::optional<Tensor> mask_of_call(const AttentionCall& call) {
    if (call.band == AttentionBand{} || is_plain(call)) return std::nullopt;
    return bias_of(call);
  }
};

std::atomic<const AttentionOperators*> set_operators = nullptr;

// What LibTorch chooses to train on tensors like this one and a head size; asked once for every
// device, as its switches are then.
at::SDPBackend choice_for(const Tensor& like, int64_t head_dim) {
  constexpr size_t kDevices = 64, kHeads = FlashOperators::kLargestHead / 8 + 1;
  static std::array<std::array<std::atomic<int>, kHeads>, kDevices> known{};  // 0: not asked
  const auto device = static_cast<size_t>(like.device().index()),
             head = static_cast<size_t>((head_dim + 7) / 8);
  int answer = device < kDevices ? known[device][head].load() : 0;
  if (answer == 0) {
    const c10::AutoGradMode with_gradients(true);
    const Tensor small = at::empty({1, 1, 128, static_cast<int64_t>(head) * 8}, like.options())
                             .set_requires_grad(true);
    answer = 1 + static_cast<int>(at::_fused_sdp_choice(small, small, small));
    if (device < kDevices) known[device][head] = answer;
  }
  return static_cast<at::SDPBackend>(answer - 1);
}

}  // namespace

AttentionOperators::~AttentionOperators() = default;

void set_attention_operators(const AttentionOperators* operators) { set_operators = operators; }

const AttentionOperators* attention_operators(const Tensor& query) {
  static const FlashOperators flash;
  static const CudnnOperators cudnn(flash);
  static const EfficientOperators efficient;
  if (const AttentionOperators* given = set_operators) return given;
  if (!query.is_cuda()) return nullptr;
  if (query.scalar_type() == at::kFloat) return &efficient;
  if (query.scalar_type() != at::kHalf && query.scalar_type() != at::kBFloat16) return nullptr;
  if (query.size(3) > FlashOperators::kLargestHead) return &efficient;
  switch (choice_for(query, query.size(3))) {
    case at::SDPBackend::cudnn_attention:
      // Sums of its backward have another order in every run.
      return at::globalContext().deterministicAlgorithms()
                 ? static_cast<const AttentionOperators*>(&flash)
                 : &cudnn;
    case at::SDPBackend::flash_attention:
      return &flash;
    case at::SDPBackend::efficient_attention:
      return &efficient;
    default:
      return nullptr;
  }
}

const AttentionOperators& cpu_attention_operators() {
  static const CpuOperators operators;
  return operators;
}

}  // namespace meshwright::detail
