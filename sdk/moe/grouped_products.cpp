#include "grouped_products.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>

#include "sdk/base/kernels/grouped_arguments.h"
#include "sdk/base/own_kernels.h"

namespace meshwright::detail {

namespace {

using at::Tensor;
using kernels::GroupedProduct;

// Multiplications and additions of an expert in some 20 us of a device's float32.
constexpr double kMostWork = 1 << 30;

int64_t tiles_of(int64_t size) { return ceil_divide(size, GroupedProduct::kTile); }

void launch_grouped(const GroupedProduct& product, const Tensor& like, int64_t stripes) {
  const auto own = OwnKernels::of(like, {4});
  TORCH_INTERNAL_ASSERT(own, "grouped products were there before");
  own->launch("grouped_product", stripes * tiles_of(product.width), product,
              GroupedProduct::kFloats * static_cast<int64_t>(sizeof(float)));
}

}  // namespace

bool has_grouped_products(const Tensor& tokens, const Tensor& first, const Tensor& second) {
  if (!tokens.is_cuda() || tokens.size(0) == 0 || first.size(0) == 0) return false;
  for (const Tensor* t : {&tokens, &first, &second})
    if (t->scalar_type() != at::kFloat) return false;
  if (!first.is_contiguous() || !second.is_contiguous()) return false;
  const double rows = static_cast<double>(tokens.size(0)) / static_cast<double>(first.size(0)),
               most = static_cast<double>(
                   std::max(first.size(1) * first.size(2), second.size(1) * second.size(2)));
  return 2 * rows * most <= kMostWork && !at::globalContext().allowTF32CuBLAS() &&
         OwnKernels::of(tokens, {4}).has_value();
}

void grouped_rows_into(const Tensor& out, const Tensor& given, const Tensor& weights,
                       const Tensor& bounds) {
  const Tensor a = given.contiguous();
  const int64_t experts = weights.size(0), inner = weights.size(1), width = weights.size(2);
  TORCH_INTERNAL_ASSERT(weights.stride(0) == inner * width && out.is_contiguous());
  launch_grouped({.a = a.const_data_ptr<float>(),
                  .b = weights.const_data_ptr<float>(),
                  .out = out.mutable_data_ptr<float>(),
                  .bounds = bounds.const_data_ptr<int32_t>(),
                  .rows = a.size(0),
                  .width = width,
                  .inner = inner,
                  .b_inner = weights.stride(1),
                  .b_column = weights.stride(2),
                  .groups = static_cast<int>(experts)},
                 a, a.size(0) / GroupedProduct::kTile + experts);
}

void grouped_sums_into(const GradientPlace& out, const Tensor& given_a, const Tensor& given_b,
                       const Tensor& bounds) {
  const Tensor a = given_a.contiguous(), b = given_b.contiguous();
  const int64_t experts = out.into.size(0);
  if (out.into.scalar_type() != at::kFloat) {
    const GradientPlace wide{at::empty(out.into.sizes(), a.options()), out.scale};
    grouped_sums_into(wide, a, b, bounds);
    if (out.add)
      out.into.add_(wide.into);
    else
      out.into.copy_(wide.into);
    return;
  }
  launch_grouped({.a = a.const_data_ptr<float>(),
                  .b = b.const_data_ptr<float>(),
                  .out = out.into.mutable_data_ptr<float>(),
                  .bounds = bounds.const_data_ptr<int32_t>(),
                  .rows = a.size(0),
                  .height = a.size(1),
                  .width = b.size(1),
                  .b_inner = b.size(1),
                  .b_column = 1,
                  .groups = static_cast<int>(experts),
                  .sums_rows = 1,
                  .scale = static_cast<float>(out.scale),
                  .add = out.add ? 1 : 0},
                 a, experts * tiles_of(a.size(1)));
}

}  // namespace meshwright::detail
