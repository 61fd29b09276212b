// Operators of CUDA that the CPU has not, or not for all types, by their definition.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "costs.h"
#include "device.h"
#include "operation.h"
#include "shapes.h"

namespace fake_device {

namespace {

using at::Tensor;

// The CPU has no such operator.
std::tuple<Tensor, Tensor> rms_norm_backward(c10::DispatchKeySet, const Tensor& grad,
                                             const Tensor& input, c10::IntArrayRef shape,
                                             const Tensor& rstd,
                                             const std::optional<Tensor>& weight,
                                             std::array<bool, 2> mask) {
  const c10::Device device = input.device();
  const std::string what = "aten::_fused_rms_norm_backward";
  at::AutoDispatchBelowADInplaceOrView below;
  const bool scales = weight && weight->defined();
  Tensor dx, dw;
  if (mask[0]) dx = at::empty_like(input);
  if (mask[1] && scales) dw = at::empty_like(*weight);
  std::vector<int64_t> inner, outer;
  for (int64_t d = 0; d < input.dim(); ++d)
    (d >= input.dim() - static_cast<int64_t>(shape.size()) ? inner : outer).push_back(d);
  Operation operation{what, device, {}, {}};
  auto view = [&](const Tensor& t, bool write) {
    return t.defined() ? operation.touch(t, write) : Tensor();
  };
  const Tensor read_x = view(input, false), read_r = view(rstd, false), read_g = view(grad, false),
               read_w = scales ? view(*weight, false) : Tensor(), to_x = view(dx, true),
               to_w = view(dw, true);
  if (fake_device_computes() != 0)
    operation.compute = [=] {
      const Tensor x = read_x.to(at::kFloat), r = read_r.to(at::kFloat), g = read_g.to(at::kFloat);
      const Tensor h = x * r, gw = read_w.defined() ? g * read_w.to(at::kFloat) : g;
      if (to_x.defined()) to_x.copy_(r * (gw - h * (gw * h).mean(inner, true)));
      if (to_w.defined()) to_w.copy_(outer.empty() ? g * h : (g * h).sum(outer));
    };
  run_or_record(std::move(operation), [&] {
    count_costs(what.c_str(), 2, {grad, input, rstd, weight.value_or(Tensor())}, {dx, dw}, device);
  });
  return {dx, dw};
}

// Nor a product of 16 bits that is not rounded to them.
Tensor& product_in_float(c10::DispatchKeySet, const Tensor& self, const Tensor& a, const Tensor& b,
                         at::ScalarType, const at::Scalar& beta, const at::Scalar& alpha,
                         Tensor& out) {
  TORCH_CHECK(
      self.is_same(out) && out.scalar_type() == at::kFloat && a.scalar_type() == b.scalar_type(),
      "the fake device adds to a float32 product in place alone");
  const c10::Device device = out.device();
  const std::string what = "aten::addmm";
  const bool adds = beta.toDouble() != 0;
  Operation operation{what, device, {}, {}};
  const Tensor left = operation.touch(a, false), right = operation.touch(b, false),
               view = operation.touch(out, true);
  if (fake_device_computes() != 0)
    operation.compute = [=] {
      Tensor into = view;
      at::addmm_out(into, into, left.to(at::kFloat), right.to(at::kFloat), beta, alpha);
    };
  run_or_record(std::move(operation), [&] {
    count_costs(what.c_str(), 1, {a, b, adds ? out : Tensor()}, {out}, device);
  });
  return out;
}

// The CPU's takes no integers.
Tensor histc(c10::DispatchKeySet, const Tensor& input, int64_t bins, const at::Scalar& min,
             const at::Scalar& max) {
  const c10::Device device = input.device();
  const std::string what = "aten::histc";
  at::AutoDispatchBelowADInplaceOrView below;
  const Tensor out = make_result({bins}, {1}, input.scalar_type(), device);
  Operation operation{what, device, {}, {}};
  const Tensor read = operation.touch(input, false), view = operation.touch(out, true);
  if (fake_device_computes() != 0)
    operation.compute = [=] { view.copy_(at::histc(read.to(at::kDouble), bins, min, max)); };
  run_or_record(std::move(operation),
                [&] { count_costs(what.c_str(), 1, {input}, {out}, device); });
  return out;
}

// What LibTorch asks of a product of 8-bit floats before it calls cuBLASLt, and cuBLASLt of memory:
// rows of the first factor and columns of the second in one piece, and sums over multiples of 16.
// Of the device first, in LibTorch's words.
void check_scaled(const Tensor& a, const Tensor& b, const Tensor& by_a, const Tensor& by_b) {
  TORCH_CHECK_NOT_IMPLEMENTED(fake_device_capability() >= 89,
                              "torch._scaled_mm is only supported on CUDA devices with compute "
                              "capability >= 9.0 or 8.9, or ROCm MI300+");
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0),
              "_scaled_mm: these cannot be multiplied: ", a.sizes(), " and ", b.sizes());
  for (const Tensor& t : {b, by_a, by_b})
    TORCH_CHECK(t.device() == a.device(), "_scaled_mm: tensors of ", a.device(), " and ",
                t.device());
  for (const Tensor& t : {a, b})
    TORCH_CHECK(t.scalar_type() == at::kFloat8_e4m3fn || t.scalar_type() == at::kFloat8_e5m2,
                "_scaled_mm: no 8-bit floats of a CUDA device: ", t.scalar_type());
  TORCH_CHECK(a.scalar_type() == at::kFloat8_e4m3fn || b.scalar_type() == at::kFloat8_e4m3fn,
              "_scaled_mm: both factors are Float8_e5m2");
  for (const Tensor& scale : {by_a, by_b})
    TORCH_CHECK(scale.scalar_type() == at::kFloat && scale.numel() == 1,
                "_scaled_mm: the fake device takes one float32 scale for a matrix");
  TORCH_CHECK(b.size(0) % 16 == 0 && b.size(1) % 16 == 0,
              "_scaled_mm: sizes of the second factor are no multiples of 16: ", b.sizes());
  TORCH_CHECK(a.stride(1) == 1 && b.stride(0) == 1,
              "_scaled_mm: cuBLASLt takes rows times columns, got strides ", a.strides(), " and ",
              b.strides());
  TORCH_CHECK((a.size(0) <= 1 || a.stride(0) % 16 == 0) && b.stride(1) % 16 == 0 &&
                  reinterpret_cast<uintptr_t>(a.const_data_ptr()) % 16 == 0 &&
                  reinterpret_cast<uintptr_t>(b.const_data_ptr()) % 16 == 0,
              "_scaled_mm: cuBLASLt reads 16 bytes at a time");
}

// The CPU's takes what a device refuses. In float32, which holds each product of two 8-bit floats.
Tensor scaled_product(c10::DispatchKeySet, const Tensor& a, const Tensor& b, const Tensor& by_a,
                      const Tensor& by_b, const std::optional<Tensor>& bias,
                      const std::optional<Tensor>& by_result,
                      std::optional<at::ScalarType> out_type, bool) {
  check_scaled(a, b, by_a, by_b);
  const at::ScalarType type = out_type.value_or(a.scalar_type());
  TORCH_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf,
              "_scaled_mm: the fake device makes no ", type);
  TORCH_CHECK(!(bias && bias->defined()) && !(by_result && by_result->defined()),
              "_scaled_mm: the fake device adds no bias and scales no result");
  const c10::Device device = a.device();
  const std::string what = "aten::_scaled_mm";
  at::AutoDispatchBelowADInplaceOrView below;
  const Tensor out = make_result({a.size(0), b.size(1)}, {b.size(1), 1}, type, device);
  if (out.numel() == 0) return out;
  Operation operation{what, device, {}, {}};
  const Tensor left = operation.touch(a, false), right = operation.touch(b, false),
               scale_left = operation.touch(by_a, false),
               scale_right = operation.touch(by_b, false), view = operation.touch(out, true);
  if (fake_device_computes() != 0)
    operation.compute = [=] {
      view.copy_(
          at::mm(left.to(at::kFloat), right.to(at::kFloat)).mul_(scale_left).mul_(scale_right));
    };
  run_or_record(std::move(operation),
                [&] { count_costs(what.c_str(), 1, {a, b, by_a, by_b}, {out}, device); });
  return out;
}

}  // namespace

void add_written_out(torch::Library& library) {
  const auto cuda = c10::DispatchKey::CUDA;
  library.impl("_fused_rms_norm_backward", torch::dispatch(cuda, TORCH_FN(rms_norm_backward)));
  library.impl("addmm.dtype_out", torch::dispatch(cuda, TORCH_FN(product_in_float)));
  library.impl("_scaled_mm", torch::dispatch(cuda, TORCH_FN(scaled_product)));
  library.impl("histc", torch::dispatch(cuda, TORCH_FN(histc)));
}

}  // namespace fake_device
