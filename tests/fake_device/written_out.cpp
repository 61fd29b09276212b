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

}  // namespace

void add_written_out(torch::Library& library) {
  const auto cuda = c10::DispatchKey::CUDA;
  library.impl("_fused_rms_norm_backward", torch::dispatch(cuda, TORCH_FN(rms_norm_backward)));
  library.impl("addmm.dtype_out", torch::dispatch(cuda, TORCH_FN(product_in_float)));
  library.impl("histc", torch::dispatch(cuda, TORCH_FN(histc)));
}

}  // namespace fake_device
