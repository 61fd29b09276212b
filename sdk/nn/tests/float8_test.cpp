// Linear in 8-bit floats: every product against one of the rounded numbers in double precision.
// Before doctest: LibTorch has a CHECK of its own.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "meshwright/nn/layers.h"
#include "sdk/nn/weight_gradients.h"

#include <doctest/doctest.h>

#include <limits>
#include <memory>
#include <string>

namespace float8_test {

using at::Tensor;
using namespace meshwright;

// As the format keeps it, multiplied back: by the definition of e4m3 (3 bits behind the first, no
// exponent below -6) and e5m2 (2 bits, -14), not by LibTorch's types.
Tensor rounded(const Tensor& x, int bits, int lowest, double largest) {
  const Tensor wide = x.to(at::kDouble);
  const double most = wide.abs().max().item<double>();
  // The scale is a float32.
  const auto scale = static_cast<double>(
      static_cast<float>(static_cast<float>(1 / std::max(static_cast<float>(most), 1e-12F)) *
                         static_cast<float>(largest)));
  const auto back = static_cast<double>(static_cast<float>(1 / static_cast<float>(scale)));
  const Tensor up = x.to(at::kFloat).mul(scale).to(at::kDouble);
  const Tensor exponent = up.abs().clamp_min(1e-300).log2().floor().clamp_min(lowest);
  const Tensor unit = (exponent - bits).exp2();
  return (up / unit).round() * unit * back;
}
Tensor e4m3(const Tensor& x) { return rounded(x, 3, -6, 448); }
Tensor e5m2(const Tensor& x) { return rounded(x, 2, -14, 57344); }

double far(const Tensor& found, const Tensor& expected) {
  return (found.to(at::kDouble) - expected).abs().max().item<double>() /
         expected.abs().max().item<double>();
}

Linear linear_of(int64_t in, int64_t out, at::ScalarType type, bool bias = false) {
  Linear linear = make_linear(in, out, bias, at::TensorOptions().dtype(type));
  c10::NoGradGuard no_grad;
  linear->weight.copy_(at::randn({out, in}) * 0.3);
  if (bias) linear->bias.copy_(at::linspace(-1, 1, out));
  linear->float8 = true;
  return linear;
}

TEST_CASE("float8: forward and gradients are the products of the rounded numbers") {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (const int64_t rows : {1, 7, 16, 33}) {
      CAPTURE(rows);
      const std::string name = c10::toString(type);
      CAPTURE(name);
      at::manual_seed(rows);
      const double most = type == at::kFloat ? 2e-6 : 4.5e-3;
      Linear linear = linear_of(48, 32, type, /*bias=*/true);
      const Tensor x = at::randn({1, rows, 48}).to(type).set_requires_grad(true),
                   grad = at::randn({1, rows, 32}).to(type);
      const Tensor y = linear(x);
      CHECK((y.scalar_type() == type));
      const Tensor xr = e4m3(x.detach()).squeeze(0), wr = e4m3(linear->weight.detach()),
                   gr = e5m2(grad).squeeze(0);
      CHECK(far(y.squeeze(0), xr.matmul(wr.t()) + linear->bias.to(at::kDouble)) < most);
      y.backward(grad);
      CHECK(far(x.grad().squeeze(0), gr.matmul(wr)) < most);
      CHECK(far(linear->weight.grad(), gr.t().matmul(xr)) < most);
      CHECK(far(linear->bias.grad(), grad.to(at::kDouble).squeeze(0).sum(0)) < most);
    }
}

TEST_CASE("float8: sizes that the kernels do not take are multiplied as they are") {
  Linear linear = linear_of(20, 32, at::kFloat), wide = linear_of(20, 32, at::kFloat);
  wide->float8 = false;
  {
    c10::NoGradGuard no_grad;
    wide->weight.copy_(linear->weight);
  }
  const Tensor x = at::randn({5, 20});
  CHECK(linear(x).equal(wide(x)));
  CHECK(linear(at::zeros({0, 20})).size(0) == 0);
}

TEST_CASE("float8: zeros stay zeros, and what is not a number does not get lost") {
  Linear linear = linear_of(16, 16, at::kFloat);
  CHECK(linear(at::zeros({4, 16})).abs().max().item<float>() == 0);
  Tensor x = at::ones({4, 16});
  x[1][3] = std::numeric_limits<float>::quiet_NaN();
  CHECK(linear(x).isnan().any().item<bool>());
  x[1][3] = std::numeric_limits<float>::infinity();
  CHECK_FALSE(linear(x).isfinite().all().item<bool>());
}

TEST_CASE("float8: gradients of weights that are put off are those of a whole backward") {
  Linear one = linear_of(32, 48, at::kFloat), other = linear_of(32, 48, at::kFloat);
  {
    c10::NoGradGuard no_grad;
    other->weight.copy_(one->weight);
  }
  const Tensor x = at::randn({19, 32}), grad = at::randn({19, 48});
  one(x).backward(grad);
  auto queue = std::make_shared<meshwright::detail::WeightGradients>();
  Tensor y;
  {
    meshwright::detail::WeightGradientScope scope(queue);
    y = other(x);
  }
  y.backward(grad);
  CHECK_FALSE(other->weight.grad().defined());
  queue->run();
  CHECK(other->weight.grad().equal(one->weight.grad()));
}

}  // namespace float8_test
