// Gradients of weights that are put off: not there after a backward, and then the same bits.
#include "sdk/nn/weight_gradients.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "meshwright/nn/layers.h"
#include "meshwright/nn/module.h"
#include "meshwright/nn/moe.h"
#include "meshwright/parallel/activation_checkpoint.h"
#include "sdk/base/add_low_rank.h"

// After LibTorch, which has a CHECK of its own.
#include <doctest/doctest.h>

namespace weight_gradients_test {

using namespace meshwright;
using at::Tensor;

namespace {

struct TwoImpl : torch::nn::Module {
  TwoImpl() {
    first = register_module("first", Linear(torch::nn::LinearOptions(6, 70)));
    norm = register_module("norm", RMSNorm(70, 1e-6));
    last = register_module("last", Linear(torch::nn::LinearOptions(70, 4).bias(false)));
  }
  Tensor forward(const Tensor& x) { return last(norm(first(x))); }
  Linear first{nullptr}, last{nullptr};
  RMSNorm norm{nullptr};
};
MESHWRIGHT_MODULE(Two);

Tensor noise(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype = at::kFloat) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed)).to(dtype);
}

// `weights`: of those that are put off, the others come with the backward.
void check(torch::nn::Module& module, const std::vector<Tensor>& weights,
           const std::function<Tensor()>& forward) {
  module.zero_grad();
  const Tensor output = forward(), gradient = noise(output.sizes(), 9, output.scalar_type());
  output.backward(gradient);
  std::vector<Tensor> wanted;
  for (const Tensor& p : module.parameters()) wanted.push_back(p.grad().clone());

  module.zero_grad(/*set_to_none=*/true);
  auto queue = std::make_shared<meshwright::detail::WeightGradients>();
  {
    meshwright::detail::WeightGradientScope scope(queue);
    Tensor late = forward();
    CHECK(late.equal(output));
    CHECK(queue->empty());
    late.backward(gradient);
  }
  CHECK(!queue->empty());
  for (const Tensor& weight : weights) CHECK(!weight.grad().defined());
  queue->run();
  CHECK(queue->empty());
  const std::vector<Tensor> parameters = module.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    REQUIRE(parameters[i].grad().defined());
    CHECK(parameters[i].grad().equal(wanted[i]));
  }
}

}  // namespace

TEST_CASE("weights' gradients put off: of linear layers, also of those that are recomputed") {
  Two two;
  const Tensor x = noise({3, 5, 6}, 1).requires_grad_();
  const std::vector<Tensor> weights = {two->first->weight, two->last->weight};
  check(*two, weights, [&] { return two(x); });
  checkpoint_activations(*two);
  check(*two, weights, [&] { return two(x); });
}

// Of four ranks the last has no words of a vocabulary of five.
TEST_CASE("weights' gradients put off: of a head without rows") {
  Linear head = make_linear(6, 0, /*bias=*/false, at::TensorOptions());
  const Tensor x = noise({3, 5, 6}, 1).requires_grad_();
  check(*head, {head->weight}, [&] { return head(x); });
  CHECK(x.grad().equal(at::zeros_like(x)));
}

// Two Linears of one x that stay, and what trains beside them.
struct Adapted {
  at::ScalarType dtype;
  Tensor x = noise({3, 5, 6}, 1, dtype).requires_grad_();
  std::vector<Tensor> weights{noise({7, 6}, 2, dtype), noise({7, 6}, 3, dtype)},
      factors{noise({2, 6}, 4, dtype), noise({7, 2}, 5, dtype), noise({2, 6}, 6, dtype),
              noise({7, 2}, 7, dtype)};
  explicit Adapted(at::ScalarType type) : dtype(type) {
    for (Tensor& factor : factors) factor.requires_grad_();
  }
  // `plain`: by LibTorch alone.
  Tensor forward(bool plain) const {
    Tensor sum;
    for (size_t i = 0; i < 2; ++i) {
      const Tensor &in = factors[2 * i], &out = factors[2 * i + 1];
      Tensor y = at::linear(x, weights[i]);
      CHECK(fits_low_rank(y, x, in, out));
      y = plain ? y + 1.5 * at::linear(at::linear(x, in), out) : add_low_rank(y, x, in, out, 1.5);
      sum = sum.defined() ? sum + y.sin() : y.sin();
    }
    return sum;
  }
  std::vector<Tensor> take() {
    std::vector<Tensor> out{std::exchange(x.mutable_grad(), Tensor())};
    for (Tensor& factor : factors) out.push_back(std::exchange(factor.mutable_grad(), Tensor()));
    return out;
  }
};

TEST_CASE("an adapter adds into the Linear's output, with the gradients of LibTorch") {
  for (at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    Adapted net(dtype);
    // Of the largest: sums of large numbers of both signs come out near zero.
    const double near = dtype == at::kDouble ? 1e-12 : 1e-5;
    auto same = [&](const std::vector<Tensor>& ours, const std::vector<Tensor>& theirs) {
      for (size_t i = 0; i < theirs.size(); ++i) {
        CAPTURE(i);
        REQUIRE(ours[i].defined());
        const double most = theirs[i].abs().max().item<double>();
        CHECK((ours[i] - theirs[i]).abs().max().item<double>() <= near * most);
      }
    };
    const Tensor wanted = net.forward(true), gradient = noise(wanted.sizes(), 9, dtype);
    wanted.backward(gradient);
    const std::vector<Tensor> theirs = net.take();
    const Tensor came = net.forward(false);
    CHECK(came.allclose(wanted, 1e-5, 1e-5));
    came.backward(gradient);
    same(net.take(), theirs);

    auto queue = std::make_shared<meshwright::detail::WeightGradients>();
    {
      meshwright::detail::WeightGradientScope scope(queue);
      net.forward(false).backward(gradient);
    }
    for (const Tensor& factor : net.factors) CHECK(!factor.grad().defined());
    queue->run();
    same(net.take(), theirs);

    auto second = [&](bool plain) {
      const Tensor slope = torch::autograd::grad({net.forward(plain).sum()}, {net.x}, {},
                                                 /*retain_graph=*/true, /*create_graph=*/true)[0];
      slope.square().sum().backward();
      return net.take();
    };
    same(second(false), second(true));
    c10::NoGradGuard no_grad;
    CHECK(net.forward(false).allclose(wanted, 1e-5, 1e-5));
  }
}

TEST_CASE("weights' gradients put off: of experts") {
  MoeConfig config;
  config.dim = 16;
  config.moe_inter_dim = 24;
  config.n_routed_experts = 3;
  config.initializer_range = 0.5;
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const std::vector<int64_t>& counts :
         {std::vector<int64_t>{4, 0, 7}, std::vector<int64_t>{5, 3, 8}}) {
      CAPTURE(c10::toString(dtype));
      GroupedExperts experts(config, at::TensorOptions().dtype(dtype));
      int64_t rows = 0;
      for (int64_t count : counts) rows += count;
      const Tensor tokens = noise({rows, 16}, 2, dtype).requires_grad_(),
                   share = noise({rows}, 3).sigmoid().requires_grad_();
      check(*experts, {experts->gate_and_up_projs, experts->down_projs},
            [&] { return experts(tokens, counts, share); });
    }
}

}  // namespace weight_gradients_test
