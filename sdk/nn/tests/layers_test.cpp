// Norms, Linear and Embedding against ATen's own, forward and backward.
#include <ATen/ops/allclose.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/tensor.h>
#include <doctest/doctest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <cmath>

#include "meshwright/nn/layers.h"

namespace layers_test {

using at::Tensor;

TEST_CASE("RMSNorm equals ATen's, with its gradients") {
  for (auto [rows, size] :
       {std::pair<int64_t, int64_t>{1, 1}, {5, 17}, {64, 256}, {3, 1000}, {0, 8}}) {
    CAPTURE(rows);
    CAPTURE(size);
    meshwright::RMSNorm norm(size, 1e-6);
    {
      c10::NoGradGuard no_grad;
      norm->weight.copy_(at::randn({size}));
    }
    Tensor x = at::randn({2, rows, size}).transpose(0, 1).set_requires_grad(true),
           g = at::randn({rows, 2, size});
    Tensor other = x.detach().clone().set_requires_grad(true),
           weight = norm->weight.detach().clone().set_requires_grad(true);
    Tensor y = norm(x), z = at::rms_norm(other, {size}, weight, 1e-6);
    CHECK(at::allclose(y, z, 1e-6, 1e-6));
    y.backward(g);
    z.backward(g);
    CHECK(at::allclose(x.grad(), other.grad(), 1e-5, 1e-5));
    CHECK(at::allclose(norm->weight.grad(), weight.grad(), 1e-5, 1e-5));
  }
}

TEST_CASE("LayerNorm is ATen's, and its tensors are made as asked") {
  meshwright::LayerNorm norm(6, 1e-3, at::TensorOptions().dtype(at::kDouble));
  const Tensor x = at::randn({2, 3, 6}, at::kDouble);
  CHECK(norm(x).equal(at::layer_norm(x, {6}, norm->weight, norm->bias, 1e-3)));
  CHECK(norm->weight.eq(1).all().item<bool>());
  CHECK(norm->bias.eq(0).all().item<bool>());
  CHECK(meshwright::RMSNorm(6, 1e-3, meshwright::NormScale::weight, at::kMeta)->weight.is_meta());
}

TEST_CASE("Embedding gives rows by a number that is rounded to their dtype") {
  meshwright::Embedding words = meshwright::make_embedding(5, 4, at::kBFloat16, 1);
  {
    c10::NoGradGuard no_grad;
    words->weight.copy_(at::randn({5, 4}));
  }
  const Tensor ids = at::tensor({4, 1, 0, 4}, at::kLong).view({2, 2});
  const Tensor rows = words->weight.index_select(0, ids.flatten()).view({2, 2, 4});
  CHECK(words(ids).equal(rows));
  words->scale = std::sqrt(1152);
  CHECK(words(ids).equal(rows * 34));
  words(ids).sum().backward();
  CHECK(words->weight.grad()[1].eq(0).all().item<bool>());
  CHECK(words->weight.grad()[4].eq(68).all().item<bool>());
}

TEST_CASE("RMSNorm in bfloat16 normalises in float32, casts, then scales") {
  meshwright::RMSNorm norm(64, 1e-5);
  norm->to(at::kBFloat16);
  Tensor x = at::randn({4, 64}).to(at::kBFloat16);
  Tensor wide = x.to(at::kFloat);
  Tensor expected =
      (wide * (wide.square().mean({-1}, true) + 1e-5).rsqrt()).to(at::kBFloat16) * norm->weight;
  CHECK(norm(x).equal(expected));
}

// What backward keeps of x is x: its gradients are those of the operators, in their own digits.
TEST_CASE("RMSNorm in bfloat16 has the operators' gradients") {
  for (const auto scale : {meshwright::NormScale::weight, meshwright::NormScale::one_plus_weight}) {
    const bool plus_one = scale == meshwright::NormScale::one_plus_weight;
    CAPTURE(plus_one);
    meshwright::RMSNorm norm(64, 1e-5, scale);
    {
      c10::NoGradGuard no_grad;
      norm->weight.copy_(at::randn({64}));
    }
    norm->to(at::kBFloat16);
    Tensor x = at::randn({3, 5, 64}).to(at::kBFloat16).set_requires_grad(true),
           g = at::randn({3, 5, 64}).to(at::kBFloat16);
    Tensor wide = x.detach().to(at::kDouble).set_requires_grad(true),
           weight = norm->weight.detach().to(at::kDouble).set_requires_grad(true);
    norm(x).backward(g);
    const Tensor scaled = wide * (wide.square().mean({-1}, true) + 1e-5).rsqrt();
    (plus_one ? scaled * (weight + 1) : scaled * weight).backward(g.to(at::kDouble));
    CHECK((x.grad().scalar_type() == at::kBFloat16));
    CHECK((norm->weight.grad().scalar_type() == at::kBFloat16));
    CHECK(at::allclose(x.grad().to(at::kDouble), wide.grad(), 0.02, 0.02));
    CHECK(at::allclose(norm->weight.grad().to(at::kDouble), weight.grad(), 0.02, 0.05));
    // A frozen weight gets none, and x the same one.
    const Tensor before = x.grad().clone();
    x.mutable_grad() = Tensor();
    norm->weight.mutable_grad() = Tensor();
    norm->weight.set_requires_grad(false);
    norm(x).backward(g);
    CHECK(x.grad().equal(before));
    CHECK_FALSE(norm->weight.grad().defined());
  }
}

TEST_CASE(
    "RMSNorm scaled by one plus its weight, in float32 and cast afterwards, with its gradients") {
  meshwright::RMSNorm norm(24, 1e-5, meshwright::NormScale::one_plus_weight);
  CHECK(norm->weight.eq(0).all().item<bool>());  // which leaves the normalised values as they are
  {
    c10::NoGradGuard no_grad;
    norm->weight.copy_(at::randn({24}));
  }
  Tensor x = at::randn({7, 24}).set_requires_grad(true), g = at::randn({7, 24});
  Tensor other = x.detach().clone().set_requires_grad(true),
         weight = norm->weight.detach().clone().set_requires_grad(true);
  Tensor y = norm(x), z = other * (other.square().mean({-1}, true) + 1e-5).rsqrt() * (1 + weight);
  CHECK(at::allclose(y, z, 1e-6, 1e-6));
  y.backward(g);
  z.backward(g);
  CHECK(at::allclose(x.grad(), other.grad(), 1e-5, 1e-5));
  CHECK(at::allclose(norm->weight.grad(), weight.grad(), 1e-5, 1e-5));
  norm->to(at::kBFloat16);
  Tensor narrow = at::randn({4, 24}).to(at::kBFloat16), wide = narrow.to(at::kFloat);
  Tensor expected =
      (wide * (wide.square().mean({-1}, true) + 1e-5).rsqrt() * (1 + norm->weight.to(at::kFloat)))
          .to(at::kBFloat16);
  CHECK(norm(narrow).equal(expected));
}

TEST_CASE("Linear equals LibTorch's, with its gradients, at any size") {
  for (bool with_bias : {false, true})
    for (auto [rows, in, out] : {std::array<int64_t, 3>{1, 1, 1},
                                 {3, 5, 7},
                                 {64, 200, 300},
                                 {130, 257, 129},
                                 {0, 300, 200},
                                 {1, 2000, 2000}}) {
      CAPTURE(rows);
      CAPTURE(in);
      CAPTURE(with_bias);
      meshwright::Linear linear(torch::nn::LinearOptions(in, out).bias(with_bias));
      torch::nn::Linear theirs(torch::nn::LinearOptions(in, out).bias(with_bias));
      {
        c10::NoGradGuard no_grad;
        theirs->weight.copy_(linear->weight);
        if (with_bias) theirs->bias.copy_(linear->bias);
      }
      for (const Tensor& given : {at::randn({2, rows, in}), at::randn({rows, in}),
                                  at::randn({in, rows, 2}).transpose(0, 2)}) {
        Tensor x = given.clone().set_requires_grad(true),
               other = given.clone().set_requires_grad(true);
        Tensor y = linear(x), z = theirs(other);
        REQUIRE(y.sizes().vec() == z.sizes().vec());
        CHECK(at::allclose(y, z, 1e-5, 1e-5));
        Tensor g = at::randn_like(y);
        y.backward(g);
        z.backward(g);
        CHECK(at::allclose(x.grad(), other.grad(), 1e-5, 1e-5));
      }
      CHECK(linear->weight.grad().is_contiguous());
      CHECK(at::allclose(linear->weight.grad(), theirs->weight.grad(), 1e-5, 1e-4));
      if (with_bias) CHECK(at::allclose(linear->bias.grad(), theirs->bias.grad(), 1e-5, 1e-4));
    }
}

TEST_CASE("Linear gives frozen weights no gradient and takes second derivatives") {
  meshwright::Linear linear(torch::nn::LinearOptions(200, 150).bias(false));
  Tensor x = at::randn({100, 200}).set_requires_grad(true);
  Tensor first =
      torch::autograd::grad({linear(x).square().sum()}, {x}, {}, true, /*create_graph=*/true)[0];
  first.square().sum().backward();  // sum of (2 W^T W x)^2
  Tensor gram = 2 * at::mm(linear->weight.t(), linear->weight).detach();
  CHECK(at::allclose(x.grad(), 2 * at::mm(at::mm(x.detach(), gram), gram), 1e-4, 1e-4));
  linear->weight.set_requires_grad(false);
  linear->zero_grad();
  linear(x).sum().backward();
  CHECK_FALSE(linear->weight.grad().defined());
}

}  // namespace layers_test
