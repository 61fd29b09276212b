// RMSNorm against ATen's own, forward and backward.
#include <ATen/ops/allclose.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rms_norm.h>
#include <doctest/doctest.h>

#include "meshwright/layers.h"

using at::Tensor;

TEST_CASE("RMSNorm equals ATen's, with its gradients") {
  for (auto [rows, size] : {std::pair<int64_t, int64_t>{1, 1}, {5, 17}, {64, 256}, {3, 1000}, {0, 8}}) {
    CAPTURE(rows);
    CAPTURE(size);
    meshwright::RMSNorm norm(size, 1e-6);
    {
      c10::NoGradGuard no_grad;
      norm->weight.copy_(at::randn({size}));
    }
    Tensor x = at::randn({2, rows, size}).transpose(0, 1).set_requires_grad(true), g = at::randn({rows, 2, size});
    Tensor other = x.detach().clone().set_requires_grad(true), weight = norm->weight.detach().clone().set_requires_grad(true);
    Tensor y = norm(x), z = at::rms_norm(other, {size}, weight, 1e-6);
    CHECK(at::allclose(y, z, 1e-6, 1e-6));
    y.backward(g);
    z.backward(g);
    CHECK(at::allclose(x.grad(), other.grad(), 1e-5, 1e-5));
    CHECK(at::allclose(norm->weight.grad(), weight.grad(), 1e-5, 1e-5));
  }
}

TEST_CASE("RMSNorm in bfloat16 normalises in float32, casts, then scales") {
  meshwright::RMSNorm norm(64, 1e-5);
  norm->to(at::kBFloat16);
  Tensor x = at::randn({4, 64}).to(at::kBFloat16);
  Tensor wide = x.to(at::kFloat);
  Tensor expected = (wide * (wide.square().mean({-1}, true) + 1e-5).rsqrt()).to(at::kBFloat16) * norm->weight;
  CHECK(norm(x).equal(expected));
}
