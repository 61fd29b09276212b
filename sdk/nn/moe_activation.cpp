#include "moe_parts.h"

#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <c10/core/GradMode.h>

#include <optional>

#include "sdk/base/own_kernels.h"
#include "sdk/base/vectorised.h"

namespace meshwright::detail {

namespace {

using at::Tensor;

constexpr int64_t kGrain = 16384;

MESHWRIGHT_VECTORISED void swiglu_row(const float* __restrict gate, const float* __restrict up,
                                      float weight, float* __restrict out, int64_t width) {
  // As a factor: the compiler divides a second time where a quotient of two variables may have a
  // constant divisor.
  for (int64_t i = 0; i < width; ++i)
    out[i] = gate[i] * (1 / (1 + exponential(-gate[i]))) * up[i] * weight;
}

// Gives the sum over the row of grad * silu(gate) * up, which is the weight's gradient.
MESHWRIGHT_VECTORISED float swiglu_row_backward(const float* __restrict gate,
                                                const float* __restrict up, float weight,
                                                const float* __restrict grad,
                                                float* __restrict to_gate, float* __restrict to_up,
                                                float* __restrict weighted, int64_t width) {
  for (int64_t i = 0; i < width; ++i) {
    float g = gate[i], u = up[i], s = 1 / (1 + exponential(-g)), a = g * s, d = grad[i] * weight;
    to_gate[i] = d * u * s * (1 + g * (1 - s));
    to_up[i] = d * a;
    weighted[i] = a * u;
  }
  // Several sums at once: a vector's.
  float lanes[16] = {}, sum = 0;
  int64_t i = 0;
  for (; i + 16 <= width; i += 16)
    for (int64_t j = 0; j < 16; ++j) lanes[j] += grad[i + j] * weighted[i + j];
  for (; i < width; ++i) sum += grad[i] * weighted[i];
  for (float lane : lanes) sum += lane;
  for (i = 0; i < width; ++i) weighted[i] *= weight;
  return sum;
}

bool has_kernel(const ActivationShape& shape, const Tensor& h, const Tensor& weights) {
  return activates_into(shape, h) && plain_rows(h) && weights.defined() && plain_rows(weights);
}

// The same on a device, by kernels of our own. They know nothing of autograd.
std::optional<OwnKernels> device_kernels(const ActivationShape& shape, const Tensor& h,
                                         const Tensor& weights) {
  if (shape.kind != ExpertActivation::swiglu || shape.swiglu_limit > 0 || !weights.defined() ||
      h.dim() != 2 || weights.device() != h.device() ||
      (c10::GradMode::is_enabled() && h.requires_grad()))
    return std::nullopt;
  return OwnKernels::of(h, {h.size(1) / 2});
}
int64_t blocks_of(int64_t rows) { return ceil_divide(rows, kernels::kBlock / 32); }

Tensor activate_by(const OwnKernels& own, const Tensor& given, const Tensor& given_weights) {
  const Tensor h = own.readable(given), weights = given_weights.to(at::kFloat).contiguous();
  const int64_t rows = h.size(0), width = h.size(1) / 2;
  Tensor out = at::empty({rows, width}, h.options());
  own.launch("weighted_swiglu", blocks_of(rows),
             kernels::WeightedSwiglu{.h = h.const_data_ptr(),
                                     .weights = weights.const_data_ptr<float>(),
                                     .out = out.mutable_data_ptr(),
                                     .rows = rows,
                                     .size = width});
  return out;
}
ActivationGradients activate_backward_by(const OwnKernels& own, const Tensor& given,
                                         const Tensor& given_weights, const Tensor& given_grad) {
  const Tensor h = own.readable(given), grad = own.readable(given_grad),
               weights = given_weights.to(at::kFloat).contiguous();
  const int64_t rows = h.size(0), width = h.size(1) / 2;
  ActivationGradients out{at::empty_like(h), at::empty({rows}, weights.options()),
                          at::empty({rows, width}, h.options())};
  own.launch("weighted_swiglu_backward", blocks_of(rows),
             kernels::WeightedSwigluBackward{.h = h.const_data_ptr(),
                                             .grad = grad.const_data_ptr(),
                                             .weights = weights.const_data_ptr<float>(),
                                             .to_h = out.to_h.mutable_data_ptr(),
                                             .weighted = out.weighted.mutable_data_ptr(),
                                             .to_weights = out.to_weights.mutable_data_ptr<float>(),
                                             .rows = rows,
                                             .size = width});
  out.to_weights = out.to_weights.to(given_weights.scalar_type());
  return out;
}

struct Parts {
  Tensor gate, up;  // up: undefined without a gate
};

Parts split(const ActivationShape& shape, const Tensor& h) {
  Tensor x = wide(h);
  if (!shape.gated()) return {x, {}};
  int64_t width = x.size(1) / 2;
  if (shape.kind == ExpertActivation::quick_geglu) {
    Tensor pairs = x.view({x.size(0), width, 2});
    return {pairs.select(2, 0), pairs.select(2, 1)};
  }
  return {x.narrow(1, 0, width), x.narrow(1, width, width)};
}

struct Derived {
  Tensor value, to_gate, to_up;  // and its derivatives by both parts, where asked for
};

Derived swiglu(const Parts& x, double limit, bool derive) {
  bool clamped = limit > 0;
  Tensor g = clamped ? x.gate.clamp_max(limit) : x.gate,
         u = clamped ? x.up.clamp(-limit, limit) : x.up;
  Tensor s = at::sigmoid(g), a = g * s;
  Derived out{a * u, {}, {}};
  if (!derive) return out;
  out.to_gate = u * s * (1 + g * (1 - s));
  out.to_up = a;
  if (clamped) {
    out.to_gate = out.to_gate * x.gate.le(limit).to(g.scalar_type());
    out.to_up = out.to_up * x.up.abs().le(limit).to(g.scalar_type());
  }
  return out;
}

// g sigmoid(alpha g) (u + 1), both parts clamped.
Derived shifted(const Parts& x, double alpha, double limit, bool derive) {
  Tensor g = x.gate.clamp_max(limit), u = x.up.clamp(-limit, limit) + 1;
  Tensor s = at::sigmoid(alpha * g), a = g * s;
  Derived out{a * u, {}, {}};
  if (!derive) return out;
  out.to_gate = u * s * (1 + alpha * g * (1 - s)) * x.gate.le(limit).to(g.scalar_type());
  out.to_up = a * x.up.abs().le(limit).to(g.scalar_type());
  return out;
}

Derived derive(const ActivationShape& shape, const Parts& x, bool derive) {
  switch (shape.kind) {
    case ExpertActivation::swiglu:
      return swiglu(x, shape.swiglu_limit, derive);
    case ExpertActivation::swigluoai:
    case ExpertActivation::quick_geglu:
      return shifted(x, shape.alpha, shape.limit, derive);
    case ExpertActivation::geglu: {
      Tensor a = at::gelu(x.gate);
      return {a * x.up, derive ? at::gelu_backward(x.up, x.gate) : Tensor(), a};
    }
    case ExpertActivation::relu2: {
      Tensor r = at::relu(x.gate);
      return {r.square(), derive ? 2 * r : Tensor(), {}};
    }
  }
  return {};
}

}  // namespace

Tensor wide(const Tensor& t) { return t.scalar_type() == at::kDouble ? t : t.to(at::kFloat); }

bool activates_into(const ActivationShape& shape, const Tensor& t) {
  return shape.kind == ExpertActivation::swiglu && shape.swiglu_limit <= 0 && t.is_cpu() &&
         t.scalar_type() == at::kFloat;
}

ActivationShape activation_shape(const MoeConfig& config) {
  return {config.expert_activation, config.activation_alpha, config.activation_limit,
          config.swiglu_limit};
}

Tensor activate(const ActivationShape& shape, const Tensor& h, const Tensor& weights,
                const Tensor& into) {
  if (has_kernel(shape, h, weights)) {
    int64_t rows = h.size(0), width = h.size(1) / 2;
    Tensor out = into.defined() ? into : at::empty({rows, width}, h.options());
    const float *in = h.const_data_ptr<float>(), *w = weights.const_data_ptr<float>();
    float* to = out.mutable_data_ptr<float>();
    at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(width, 1)),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t r = begin; r < end; ++r)
                         swiglu_row(in + 2 * r * width, in + (2 * r + 1) * width, w[r],
                                    to + r * width, width);
                     });
    return out;
  }
  if (const auto own = device_kernels(shape, h, weights)) return activate_by(*own, h, weights);
  Tensor a = derive(shape, split(shape, h), /*derive=*/false).value;
  if (weights.defined()) a = a * wide(weights).unsqueeze(1);
  return a.to(h.scalar_type());
}

ActivationGradients activate_backward(const ActivationShape& shape, const Tensor& h,
                                      const Tensor& weights, const Tensor& given_grad,
                                      ActivationGradients out) {
  if (has_kernel(shape, h, weights) && given_grad.scalar_type() == at::kFloat) {
    Tensor grad = given_grad.contiguous();
    int64_t rows = h.size(0), width = h.size(1) / 2;
    if (!out.to_h.defined()) out.to_h = at::empty_like(h);
    if (!out.to_weights.defined()) out.to_weights = at::empty({rows}, h.options());
    if (!out.weighted.defined()) out.weighted = at::empty({rows, width}, h.options());
    const float *in = h.const_data_ptr<float>(), *w = weights.const_data_ptr<float>(),
                *d = grad.const_data_ptr<float>();
    float *to_h = out.to_h.mutable_data_ptr<float>(),
          *to_w = out.to_weights.mutable_data_ptr<float>(),
          *weighted = out.weighted.mutable_data_ptr<float>();
    at::parallel_for(0, rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(width, 1)),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t r = begin; r < end; ++r) {
                         int64_t gate = 2 * r * width, up = gate + width;
                         // The forward pass left these long ago, and processors do not see the two
                         // halves of a row as one stream.
                         if (r + 1 < end)
                           for (int64_t i = 0; i < 2 * width; i += 16)
                             __builtin_prefetch(in + gate + 2 * width + i);
                         to_w[r] = swiglu_row_backward(in + gate, in + up, w[r], d + r * width,
                                                       to_h + gate, to_h + up, weighted + r * width,
                                                       width);
                       }
                     });
    return out;
  }
  if (const auto own = device_kernels(shape, h, weights);
      own && given_grad.scalar_type() == h.scalar_type())
    return activate_backward_by(*own, h, weights, given_grad);
  Derived x = derive(shape, split(shape, h), /*derive=*/true);
  Tensor grad = wide(given_grad), w = wide(weights).unsqueeze(1), weighted_grad = grad * w;
  out.weighted = (x.value * w).to(h.scalar_type());
  out.to_weights = (grad * x.value).sum(1).to(weights.scalar_type());
  Tensor to_gate = weighted_grad * x.to_gate;
  if (!shape.gated()) {
    out.to_h = to_gate;
  } else {
    Tensor to_up = weighted_grad * x.to_up;
    out.to_h = shape.kind == ExpertActivation::quick_geglu
                   ? at::stack({to_gate, to_up}, 2).flatten(1)
                   : at::cat({to_gate, to_up}, 1);
  }
  out.to_h = out.to_h.to(h.scalar_type());
  return out;
}

}  // namespace meshwright::detail
