#include "engine/models/running/activation.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/mish.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/relu6.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/tanh.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "sdk/base/own_kernels.h"
#include "sdk/base/vectorised.h"

namespace meshwright::modules {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr struct {
  const char* name;
  Activation function;
} kActivations[] = {
    {"gelu", [](const Tensor& x) { return at::gelu(x); }},
    {"gelu_fast", [](const Tensor& x) { return at::gelu(x, "tanh"); }},
    {"gelu_new", [](const Tensor& x) { return at::gelu(x, "tanh"); }},
    {"gelu_python", [](const Tensor& x) { return at::gelu(x); }},
    {"gelu_pytorch_tanh", [](const Tensor& x) { return at::gelu(x, "tanh"); }},
    {"gelu_python_tanh", [](const Tensor& x) { return at::gelu(x, "tanh"); }},
    {"hardswish", [](const Tensor& x) { return at::hardswish(x); }},
    {"leaky_relu", [](const Tensor& x) { return at::leaky_relu(x); }},
    {"linear", [](const Tensor& x) { return x; }},
    {"mish", [](const Tensor& x) { return at::mish(x); }},
    {"quick_gelu", [](const Tensor& x) { return x * at::sigmoid(1.702 * x); }},
    {"relu", [](const Tensor& x) { return at::relu(x); }},
    {"relu2", [](const Tensor& x) { return at::relu(x).square(); }},
    {"relu6", [](const Tensor& x) { return at::relu6(x); }},
    {"sigmoid", [](const Tensor& x) { return at::sigmoid(x); }},
    {"silu", [](const Tensor& x) { return at::silu(x); }},
    {"swish", [](const Tensor& x) { return at::silu(x); }},
    {"tanh", [](const Tensor& x) { return at::tanh(x); }},
};

MESHWRIGHT_VECTORISED void silu_times(const float* __restrict gate, const float* __restrict up,
                                      float* __restrict out, int64_t count) {
  // As a factor: the compiler divides a second time where a quotient of two variables may have a
  // constant divisor.
  for (int64_t i = 0; i < count; ++i) out[i] = gate[i] * (1 / (1 + exponential(-gate[i]))) * up[i];
}

MESHWRIGHT_VECTORISED void silu_times_backward(const float* __restrict gate,
                                               const float* __restrict up,
                                               const float* __restrict grad,
                                               float* __restrict to_gate, float* __restrict to_up,
                                               int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    float g = gate[i], s = 1 / (1 + exponential(-g));
    to_gate[i] = grad[i] * up[i] * s * (1 + g * (1 - s));
    to_up[i] = grad[i] * g * s;
  }
}

// silu(gate) * up in one pass each way, and no saved product. float32 on the CPU.
struct FusedSiluTimes : torch::autograd::Function<FusedSiluTimes> {
  static Tensor forward(AutogradContext* context, const Tensor& given_gate,
                        const Tensor& given_up) {
    Tensor gate = given_gate.contiguous(), up = given_up.contiguous(), out = at::empty_like(gate);
    const float *g = gate.const_data_ptr<float>(), *u = up.const_data_ptr<float>();
    float* o = out.mutable_data_ptr<float>();
    at::parallel_for(0, gate.numel(), kGrain, [&](int64_t begin, int64_t end) {
      silu_times(g + begin, u + begin, o + begin, end - begin);
    });
    context->save_for_backward({gate, up});
    return out;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    variable_list saved = context->get_saved_variables();
    Tensor grad = grads[0].contiguous(), to_gate = at::empty_like(saved[0]),
           to_up = at::empty_like(saved[1]);
    const float *g = saved[0].const_data_ptr<float>(), *u = saved[1].const_data_ptr<float>(),
                *d = grad.const_data_ptr<float>();
    float *dg = to_gate.mutable_data_ptr<float>(), *du = to_up.mutable_data_ptr<float>();
    at::parallel_for(0, grad.numel(), kGrain, [&](int64_t begin, int64_t end) {
      silu_times_backward(g + begin, u + begin, d + begin, dg + begin, du + begin, end - begin);
    });
    return {to_gate, to_up};
  }
  static constexpr int64_t kGrain = 16384;
};

// In fewer digits, without kernels of our own: what the operators give, but silu(gate) is made
// again in backward, not kept.
struct NarrowSiluTimes : torch::autograd::Function<NarrowSiluTimes> {
  static bool fits(const Tensor& gate, const Tensor& up) {
    const at::ScalarType type = gate.scalar_type();
    return (type == at::kBFloat16 || type == at::kHalf) && up.scalar_type() == type &&
           gate.sizes() == up.sizes();
  }
  static Tensor forward(AutogradContext* context, const Tensor& gate, const Tensor& up) {
    context->save_for_backward({gate, up});
    return at::silu(gate) * up;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &gate = saved[0], &up = saved[1], &g = grads[0];
    Tensor to_gate, to_up;
    if (context->needs_input_grad(0)) to_gate = at::silu_backward(g * up, gate);
    if (context->needs_input_grad(1)) to_up = g * at::silu(gate);
    return {to_gate, to_up};
  }
};

// The same on a device, in the types that kernels of our own have.
struct DeviceSiluTimes : torch::autograd::Function<DeviceSiluTimes> {
  static std::optional<OwnKernels> kernels(const Tensor& gate, const Tensor& up) {
    if (gate.dim() == 0 || gate.scalar_type() != up.scalar_type() || gate.sizes() != up.sizes() ||
        gate.device() != up.device())
      return std::nullopt;
    return OwnKernels::of(gate, {gate.size(-1)});
  }
  // Rows of one distance: halves of a product are such, without a copy.
  static Tensor as_rows(const OwnKernels& own, const Tensor& x) {
    const int64_t size = x.size(-1), rows = x.numel() / std::max<int64_t>(size, 1);
    return own.readable_rows(x.reshape({rows, size}));
  }
  static int64_t blocks(const Tensor& x) { return ceil_divide(x.numel(), kernels::kBlock * 8); }
  template <class Arguments>
  static void set_rows(Arguments& to, const Tensor& gate, const Tensor& up) {
    to.gate = gate.const_data_ptr();
    to.up = up.const_data_ptr();
    to.rows = gate.size(0), to.size = gate.size(1);
    to.gate_stride = gate.stride(0), to.up_stride = up.stride(0);
    if (gate.is_contiguous() && up.is_contiguous()) to.size *= std::exchange(to.rows, 1);
  }

  static Tensor forward(AutogradContext* context, const Tensor& given_gate,
                        const Tensor& given_up) {
    const OwnKernels own = *kernels(given_gate, given_up);
    const Tensor gate = as_rows(own, given_gate), up = as_rows(own, given_up);
    Tensor out = at::empty(given_gate.sizes(), gate.options());
    kernels::SiluTimes arguments{};
    set_rows(arguments, gate, up);
    arguments.out = out.mutable_data_ptr();
    own.launch("silu_times", blocks(gate), arguments);
    context->save_for_backward({gate, up});
    return out;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    variable_list saved = context->get_saved_variables();
    OwnKernels::refuse_second_derivative();
    const OwnKernels own = *kernels(saved[0], saved[1]);
    const Tensor grad = own.readable(grads[0]);
    Tensor to_gate = at::empty_like(grad), to_up = at::empty_like(grad);
    kernels::SiluTimesBackward arguments{};
    set_rows(arguments, saved[0], saved[1]);
    arguments.grad = grad.const_data_ptr();
    arguments.to_gate = to_gate.mutable_data_ptr();
    arguments.to_up = to_up.mutable_data_ptr();
    own.launch("silu_times_backward", blocks(grad), arguments);
    return {to_gate, to_up};
  }
};

}  // namespace

Activation find_activation(std::string_view name) {
  auto found = std::find_if(std::begin(kActivations), std::end(kActivations),
                            [&](const auto& a) { return name == a.name; });
  return found == std::end(kActivations) ? nullptr : found->function;
}

GatedActivationImpl::GatedActivationImpl(std::string_view name)
    : activation_(find_activation(name)), silu_(name == "silu" || name == "swish") {}

Tensor GatedActivationImpl::forward(const Tensor& gate, const Tensor& up) {
  auto plain = [](const Tensor& t) { return t.is_cpu() && t.scalar_type() == at::kFloat; };
  if (silu_ && plain(gate) && plain(up) && gate.sizes() == up.sizes())
    return FusedSiluTimes::apply(gate, up);
  if (silu_ && gate.sizes() == up.sizes() && DeviceSiluTimes::kernels(gate, up))
    return DeviceSiluTimes::apply(gate, up);
  if (silu_ && NarrowSiluTimes::fits(gate, up)) return NarrowSiluTimes::apply(gate, up);
  return activation_(gate) * up;
}

}  // namespace meshwright::modules
