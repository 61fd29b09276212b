#include "meshwright/nn/layers.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <cxxabi.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "meshwright/error.h"
#include "meshwright/nn/module.h"
#include "meshwright/parallel/scalar_type.h"
#include "sdk/base/own_kernels.h"
#include "sdk/base/residual.h"
#include "sdk/base/vectorised.h"

namespace meshwright {

HookHost::~HookHost() = default;
void* HookHost::extension(uint32_t) { return nullptr; }

HookHost* HookHost::of(torch::nn::Module& module) { return dynamic_cast<HookHost*>(&module); }

namespace detail {

std::string plain_class_name(const std::type_info& type) {
  int status = 0;
  std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), std::free);
  std::string name = status == 0 ? text.get() : type.name();
  if (size_t at = name.find('<'); at != std::string::npos) name.resize(at);
  if (size_t at = name.rfind("::"); at != std::string::npos) name = name.substr(at + 2);
  if (name.size() > 4 && name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

}  // namespace detail

void reallocate(const at::Tensor& parameter, at::IntArrayRef sizes,
                const at::TensorOptions& options) {
  parameter.unsafeGetTensorImpl()->shallow_copy_from(at::empty(sizes, options).getIntrusivePtr());
}

Linear make_linear(int64_t in, int64_t out, bool bias, const at::TensorOptions& options) {
  Linear linear(torch::nn::LinearOptions(1, 1).bias(bias));
  linear->options.in_features(in).out_features(out);
  reallocate(linear->weight, {out, in}, options);
  if (bias) reallocate(linear->bias, {out}, options);
  return linear;
}

Embedding make_embedding(int64_t rows, int64_t width, const at::TensorOptions& options,
                         std::optional<int64_t> padding) {
  Embedding embedding(torch::nn::EmbeddingOptions(1, 1));
  embedding->options.num_embeddings(rows).embedding_dim(width).padding_idx(padding);
  reallocate(embedding->weight, {rows, width}, options);
  return embedding;
}

at::Tensor EmbeddingImpl::forward(const at::Tensor& ids) {
  at::Tensor x = torch::nn::EmbeddingImpl::forward(ids);
  if (scale == 1) return x;
  // The number itself is rounded to the dtype: sqrt(1152) = 33.94 is 34 in bfloat16.
  return x * at::scalar_tensor(scale, at::kFloat).to(weight.scalar_type()).item<double>();
}

namespace {

constexpr std::array<std::pair<DType, at::ScalarType>, 9> kTypes{{
    {DType::float32, at::kFloat},
    {DType::float64, at::kDouble},
    {DType::float16, at::kHalf},
    {DType::bfloat16, at::kBFloat16},
    {DType::int8, at::kChar},
    {DType::int16, at::kShort},
    {DType::int32, at::kInt},
    {DType::int64, at::kLong},
    {DType::boolean, at::kBool},
}};

}  // namespace

at::ScalarType scalar_type(DType dtype) {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(),
                                   [&](const auto& row) { return row.first == dtype; });
  return found == kTypes.end() ? at::kFloat : found->second;
}

std::optional<DType> find_dtype(at::ScalarType type) {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(),
                                   [&](const auto& row) { return row.second == type; });
  return found == kTypes.end() ? std::nullopt : std::optional<DType>(found->first);
}

DType dtype_of(at::ScalarType type) {
  if (const std::optional<DType> found = find_dtype(type)) return *found;
  throw Error(ErrorCode::bad_module,
              std::string("a tensor of the dtype ") + c10::toString(type) + " cannot be stored")
      .help("use a floating dtype, or an integer one of at most 64 bits");
}

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

MESHWRIGHT_VECTORISED void norm_rows(const float* __restrict x, const float* __restrict w,
                                     float* __restrict y, float* __restrict rstd, int64_t rows,
                                     int64_t size, double epsilon) {
  for (int64_t r = 0; r < rows; ++r, x += size, y += size) {
    float lanes[16] = {};
    int64_t i = 0;
    for (; i + 16 <= size; i += 16)
      for (int j = 0; j < 16; ++j) lanes[j] += x[i + j] * x[i + j];
    for (; i < size; ++i) lanes[0] += x[i] * x[i];
    double sum = 0;
    for (float lane : lanes) sum += static_cast<double>(lane);
    float scale = static_cast<float>(1 / std::sqrt(sum / static_cast<double>(size) + epsilon));
    rstd[r] = scale;
    for (i = 0; i < size; ++i) y[i] = x[i] * scale * w[i];
  }
}

// dx = rstd * (g w) - x rstd^3 mean(g w x); dw = sum over rows of g x rstd.
MESHWRIGHT_VECTORISED void norm_rows_backward(const float* __restrict x, const float* __restrict w,
                                              const float* __restrict g,
                                              const float* __restrict rstd, float* __restrict dx,
                                              float* __restrict dw, int64_t rows, int64_t size) {
  for (int64_t r = 0; r < rows; ++r, x += size, g += size, dx += size) {
    float lanes[16] = {};
    int64_t i = 0;
    for (; i + 16 <= size; i += 16)
      for (int j = 0; j < 16; ++j) lanes[j] += g[i + j] * w[i + j] * x[i + j];
    for (; i < size; ++i) lanes[0] += g[i] * w[i] * x[i];
    double sum = 0;
    for (float lane : lanes) sum += static_cast<double>(lane);
    float scale = rstd[r];
    float back = static_cast<float>(sum / static_cast<double>(size)) * scale * scale * scale;
    for (i = 0; i < size; ++i) {
      dx[i] = g[i] * w[i] * scale - x[i] * back;
      dw[i] += g[i] * x[i] * scale;
    }
  }
}

// One node instead of eight, and one pass over memory each way. float32 on the CPU.
struct FusedRmsNorm : torch::autograd::Function<FusedRmsNorm> {
  static Tensor forward(AutogradContext* context, const Tensor& input, const Tensor& weight,
                        double epsilon) {
    Tensor x = input.contiguous();
    int64_t size = weight.numel(), rows = x.numel() / std::max<int64_t>(size, 1);
    Tensor y = at::empty_like(x), rstd = at::empty({rows}, x.options());
    const float *in = x.const_data_ptr<float>(), *w = weight.const_data_ptr<float>();
    float *out = y.mutable_data_ptr<float>(), *scale = rstd.mutable_data_ptr<float>();
    at::parallel_for(0, rows, 64, [&](int64_t begin, int64_t end) {
      norm_rows(in + begin * size, w, out + begin * size, scale + begin, end - begin, size,
                epsilon);
    });
    context->save_for_backward({x, weight, rstd});
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &rstd = saved[2];
    Tensor g = grads[0].contiguous(), dx = at::empty_like(x), dw = at::zeros_like(weight);
    norm_rows_backward(x.const_data_ptr<float>(), weight.const_data_ptr<float>(),
                       g.const_data_ptr<float>(), rstd.const_data_ptr<float>(),
                       dx.mutable_data_ptr<float>(), dw.mutable_data_ptr<float>(), rstd.numel(),
                       weight.numel());
    return {dx, dw, Tensor()};
  }
};

// In fewer digits than float32, without kernels of our own: what the operators give, but backward
// keeps the input alone, none of its copies in float32.
struct NarrowRmsNorm : torch::autograd::Function<NarrowRmsNorm> {
  static bool fits(const Tensor& x, const Tensor& weight) {
    const at::ScalarType type = x.scalar_type();
    return (type == at::kBFloat16 || type == at::kHalf) && weight.scalar_type() == type &&
           x.dim() > 0 && x.size(-1) == weight.numel();
  }
  static Tensor normed(const Tensor& x, double epsilon, Tensor& scale) {
    const Tensor wide = x.to(at::kFloat);
    scale = at::rsqrt(wide.square().mean({-1}, /*keepdim=*/true) + epsilon);
    return wide * scale;
  }

  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        double epsilon, bool plus_one) {
    context->save_for_backward({x, weight});
    context->saved_data["epsilon"] = epsilon;
    context->saved_data["plus_one"] = plus_one;
    Tensor scale;
    const Tensor rows = normed(x, epsilon, scale);
    if (plus_one) return (rows * (weight.to(at::kFloat) + 1)).to(x.scalar_type());
    return weight * rows.to(x.scalar_type());
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &g = grads[0];
    const bool plus_one = context->saved_data["plus_one"].toBool();
    Tensor scale, to_x, to_weight;
    const Tensor rows = normed(x, context->saved_data["epsilon"].toDouble(), scale);
    if (context->needs_input_grad(0)) {
      const Tensor wide = weight.to(at::kFloat);
      const Tensor of_rows = g.to(at::kFloat) * (plus_one ? wide + 1 : wide);
      const Tensor along = (of_rows * rows).mean({-1}, /*keepdim=*/true);
      to_x = ((of_rows - rows * along) * scale).to(x.scalar_type());
    }
    if (context->needs_input_grad(1)) {
      const Tensor each = g.to(at::kFloat) * (plus_one ? rows : rows.to(x.scalar_type()));
      to_weight = each.reshape({-1, weight.numel()}).sum(0).to(weight.scalar_type());
    }
    return {to_x, to_weight, Tensor(), Tensor()};
  }
};

// The same on a device, by kernels of our own, in the types that have them.
struct DeviceRmsNorm : torch::autograd::Function<DeviceRmsNorm> {
  // A warp has a short row, and a block a long one, whose gradient of the weight fits beside it.
  static constexpr int64_t kShort = 1024, kLongest = 12224;
  static std::optional<OwnKernels> kernels(const Tensor& x, const Tensor& weight) {
    if (x.scalar_type() != weight.scalar_type() || weight.numel() > kLongest || x.dim() == 0 ||
        x.size(-1) != weight.numel() || x.device() != weight.device())
      return std::nullopt;
    return OwnKernels::of(x, {weight.numel()});
  }
  // A sum in float32 adds what comes in fewer bits.
  static kernels::Kind kind(const Tensor& added, const Tensor& x) {
    if (added.scalar_type() == x.scalar_type()) return kernels::same;
    return added.scalar_type() == at::kHalf ? kernels::half : kernels::bfloat16;
  }
  static bool fits_sum(const Tensor& added, const Tensor& x) {
    const at::ScalarType type = added.scalar_type();
    return added.sizes() == x.sizes() && added.device() == x.device() &&
           (type == x.scalar_type() ||
            (x.scalar_type() == at::kFloat && (type == at::kBFloat16 || type == at::kHalf)));
  }
  static int64_t teams_of_block(int64_t size) { return size > kShort ? 1 : kernels::kBlock / 32; }

  // The norm of x + added, or of x where there is none. With `keeps_sum` the sum comes first.
  static variable_list forward(AutogradContext* context, const Tensor& given,
                               const std::optional<Tensor>& given_added, const Tensor& given_weight,
                               double epsilon, bool plus_one, bool keeps_sum) {
    const OwnKernels own = *kernels(given, given_weight);
    const Tensor x = own.readable(given), weight = own.readable(given_weight);
    const int64_t size = weight.numel(), rows = x.numel() / std::max<int64_t>(size, 1);
    Tensor y = at::empty_like(x), rstd = at::empty({rows}, x.options().dtype(at::kFloat)), added,
           sum;
    if (given_added) added = own.readable(*given_added), sum = at::empty_like(x);
    kernels::RmsNorm arguments{.x = x.const_data_ptr(),
                               .added = sum.defined() ? added.const_data_ptr() : nullptr,
                               .weight = weight.const_data_ptr(),
                               .sum = sum.defined() ? sum.mutable_data_ptr() : nullptr,
                               .y = y.mutable_data_ptr(),
                               .rstd = rstd.mutable_data_ptr<float>(),
                               .rows = rows,
                               .size = size,
                               .epsilon = static_cast<float>(epsilon),
                               .plus_one = plus_one ? 1 : 0,
                               .kind_of_added = sum.defined() ? kind(added, x) : kernels::same};
    own.launch(size > kShort ? "rms_norm_wide" : "rms_norm",
               ceil_divide(rows, teams_of_block(size)), arguments);
    context->save_for_backward({sum.defined() ? sum : x, weight, rstd});
    context->saved_data["plus_one"] = plus_one;
    context->saved_data["keeps_sum"] = keeps_sum;
    context->saved_data["added"] =
        static_cast<int64_t>(sum.defined() ? added.scalar_type() : at::ScalarType::Undefined);
    if (!keeps_sum) return {y};
    return {sum.defined() ? sum : given, y};
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    OwnKernels::refuse_second_derivative();
    variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &rstd = saved[2];
    const int64_t size = weight.numel(), rows = rstd.numel();
    // Rows enough for each team that the parts of the weight's gradient hardly count, and teams
    // enough for any device: on an H100's 132 multiprocessors 4 blocks each beat 2 and 8.
    const int64_t of_block = teams_of_block(size),
                  blocks = std::min<int64_t>(ceil_divide(ceil_divide(rows, 16), of_block), 528);
    const OwnKernels own = *kernels(x, weight);
    const Tensor grad = own.readable(grads.back());
    Tensor to_x = at::empty_like(x), parts, to_weight, of_sum;
    if (context->saved_data["keeps_sum"].toBool()) of_sum = own.readable(grads[0]);
    const auto type = static_cast<at::ScalarType>(context->saved_data["added"].toInt());
    const bool adds = type != at::ScalarType::Undefined;
    Tensor to_added = to_x;
    if (adds && type != x.scalar_type()) to_added = at::empty(x.sizes(), x.options().dtype(type));
    if (context->needs_input_grad(adds ? 2 : 1)) {  // of the tensors that there are
      parts = at::empty({blocks * of_block, size}, rstd.options());
      to_weight = at::empty_like(weight);
    }
    kernels::RmsNormBackward arguments{
        .x = x.const_data_ptr(),
        .weight = weight.const_data_ptr(),
        .grad = grad.const_data_ptr(),
        .grad_of_sum = of_sum.defined() ? of_sum.const_data_ptr() : nullptr,
        .rstd = rstd.const_data_ptr<float>(),
        .to_x = to_x.mutable_data_ptr(),
        .to_added = to_added.is_same(to_x) ? nullptr : to_added.mutable_data_ptr(),
        .to_weight = parts.defined() ? parts.mutable_data_ptr<float>() : nullptr,
        .rows = rows,
        .size = size,
        .plus_one = context->saved_data["plus_one"].toBool() ? 1 : 0,
        .kind_of_added = kind(to_added, x)};
    own.launch(size > kShort ? "rms_norm_wide_backward" : "rms_norm_backward", blocks, arguments,
               of_block * size * static_cast<int64_t>(sizeof(float)));
    if (to_weight.defined())
      own.launch("sum_rows", ceil_divide(size, 32),
                 kernels::SumRows{.parts = parts.const_data_ptr<float>(),
                                  .out = to_weight.mutable_data_ptr(),
                                  .rows = parts.size(0),
                                  .size = size},
                 kernels::kBlock * static_cast<int64_t>(sizeof(float)));
    return {to_x, adds ? to_added : Tensor(), to_weight, {}, {}, {}};
  }
};

}  // namespace

LayerNormImpl::LayerNormImpl(int64_t size, double eps, const at::TensorOptions& options)
    : epsilon(eps) {
  weight = register_parameter("weight", at::ones({size}, options));
  bias = register_parameter("bias", at::zeros({size}, options));
}

Tensor LayerNormImpl::forward(const Tensor& x) {
  return at::layer_norm(x, weight.sizes(), weight, bias, epsilon);
}

RMSNormImpl::RMSNormImpl(int64_t size, double eps, NormScale scaled_by,
                         const at::TensorOptions& options)
    : epsilon(eps), scale(scaled_by) {
  weight = register_parameter("weight", scale == NormScale::weight ? at::ones({size}, options)
                                                                   : at::zeros({size}, options));
}

Tensor RMSNormImpl::forward(const Tensor& x) {
  bool plus_one = scale == NormScale::one_plus_weight;
  if (x.scalar_type() == at::kFloat && weight.scalar_type() == at::kFloat) {
    Tensor factor = plus_one ? weight + 1 : weight;
    if (x.is_cpu() && weight.is_cpu()) return FusedRmsNorm::apply(x, factor, epsilon);
    return at::rms_norm(x, weight.sizes(), factor, epsilon);
  }
  if (DeviceRmsNorm::kernels(x, weight))
    return DeviceRmsNorm::apply(x, std::nullopt, weight, epsilon, plus_one, false)[0];
  if (NarrowRmsNorm::fits(x, weight)) return NarrowRmsNorm::apply(x, weight, epsilon, plus_one);
  const at::ScalarType type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Tensor wide = x.to(type),
         normed = wide * at::rsqrt(wide.square().mean({-1}, /*keepdim=*/true) + epsilon);
  if (plus_one) return (normed * (weight.to(type) + 1)).to(x.scalar_type());
  return weight * normed.to(x.scalar_type());
}

std::pair<Tensor, Tensor> add_and_norm(const Tensor& x, const Tensor& more, RMSNorm& norm) {
  const HookHost* host = HookHost::of(*norm);
  const bool hooked = host == nullptr || host->around || !host->before_forward.empty() ||
                      !host->after_forward.empty();
  const bool fits = !more.defined() || DeviceRmsNorm::fits_sum(more, x);
  if (!hooked && fits && DeviceRmsNorm::kernels(x, norm->weight)) {
    variable_list out = DeviceRmsNorm::apply(
        x, more.defined() ? std::optional(more) : std::nullopt, norm->weight, norm->epsilon,
        norm->scale == NormScale::one_plus_weight, /*keeps_sum=*/true);
    return {out[0], out[1]};
  }
  Tensor sum = more.defined() ? x + more : x;
  return {sum, norm(sum)};
}

}  // namespace meshwright
