// Adapters that read one x, beside what LibTorch gives and beside each of them alone.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sdk/base/add_low_rank.h"
#include "sdk/nn/tests/count_products.h"
#include "sdk/nn/weight_gradients.h"

// After LibTorch, which has a CHECK of its own.
#include <doctest/doctest.h>

namespace low_rank_test {

using namespace meshwright;
using at::Tensor;

namespace {

constexpr double kScale = 1.5;
constexpr int64_t kIn = 6;

// Small enough that no sum is far above what it adds up, where few bits would be left.
Tensor noise(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed)).mul(0.3).to(dtype);
}

// Adapters of some ranks, of Linears of other widths, that read one x.
struct Adapters {
  Tensor x;
  std::vector<Tensor> bases, in, out;
  Adapters(const std::vector<int64_t>& ranks, at::ScalarType dtype) {
    x = noise({3, 5, kIn}, 1, dtype).requires_grad_();
    for (size_t i = 0; i < ranks.size(); ++i) {
      const auto seed = static_cast<uint64_t>(10 * i);
      const auto width = static_cast<int64_t>(4 + i);
      bases.push_back(noise({3, 5, width}, seed + 2, dtype));
      in.push_back(noise({ranks[i], kIn}, seed + 3, dtype).requires_grad_());
      out.push_back(noise({width, ranks[i]}, seed + 4, dtype).requires_grad_());
    }
  }

  std::vector<Tensor> by_torch() const {
    std::vector<Tensor> ys;
    for (size_t i = 0; i < in.size(); ++i)
      ys.push_back(bases[i] + kScale * at::linear(at::linear(x, in[i]), out[i]));
    return ys;
  }
  std::vector<Tensor> apart() const {
    std::vector<Tensor> ys;
    for (size_t i = 0; i < in.size(); ++i)
      ys.push_back(add_low_rank(bases[i].clone(), x, in[i], out[i], kScale));
    return ys;
  }
  std::vector<Tensor> together() const {
    std::vector<Tensor> ys;
    const std::vector<Tensor> narrow = narrow_low_rank(x, in, kScale);
    for (size_t i = 0; i < in.size(); ++i) {
      CHECK(reads_low_rank(x, in[i]));
      CHECK(fits_low_rank(bases[i], x, in[i], out[i]));
      ys.push_back(widen_low_rank(bases[i].clone(), narrow[i], out[i]));
    }
    return ys;
  }

  // Of x, and of A and B of each.
  std::vector<Tensor> take() const {
    std::vector<Tensor> grads{std::exchange(x.mutable_grad(), Tensor())};
    for (size_t i = 0; i < in.size(); ++i) {
      grads.push_back(std::exchange(in[i].mutable_grad(), Tensor()));
      grads.push_back(std::exchange(out[i].mutable_grad(), Tensor()));
    }
    return grads;
  }
};

void backward(const std::vector<Tensor>& ys, size_t left_out = 99) {
  Tensor loss;
  for (size_t i = 0; i < ys.size(); ++i) {
    if (i == left_out) continue;
    const Tensor part = ys[i].sin().sum();
    loss = loss.defined() ? loss + part : part;
  }
  loss.backward();
}

double near(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 2e-6 : 5e-2;
}

// Of the largest: sums of large numbers of both signs come out near zero.
void same(const std::vector<Tensor>& ours, const std::vector<Tensor>& theirs) {
  REQUIRE(ours.size() == theirs.size());
  for (size_t i = 0; i < theirs.size(); ++i) {
    CAPTURE(i);
    REQUIRE(ours[i].defined() == theirs[i].defined());
    if (!theirs[i].defined()) continue;
    CHECK((ours[i].scalar_type() == theirs[i].scalar_type()));
    REQUIRE(ours[i].sizes() == theirs[i].sizes());
    const double most = theirs[i].abs().max().item<double>();
    CHECK((ours[i] - theirs[i]).abs().max().item<double>() <= near(theirs[i].scalar_type()) * most);
  }
}

const std::vector<std::vector<int64_t>> kRanks{{2, 2, 2}, {2, 3, 1}, {4, 1}, {3}};

}  // namespace

TEST_CASE("adapters that read one x: the numbers of LibTorch, and of each of them alone") {
  for (at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const std::vector<int64_t>& ranks : kRanks) {
      CAPTURE(c10::toString(dtype));
      CAPTURE(ranks.size());
      const Adapters adapters(ranks, dtype);
      const std::vector<Tensor> wanted = adapters.by_torch();
      backward(wanted);
      const std::vector<Tensor> gradients = adapters.take();
      for (const auto& ours : {adapters.together(), adapters.apart()}) {
        same(ours, wanted);
        backward(ours);
        same(adapters.take(), gradients);
      }
      c10::NoGradGuard no_grad;
      same(adapters.together(), wanted);
    }
}

TEST_CASE("adapters that read one x: one product with all A, and one for each of their gradients") {
  for (const std::vector<int64_t>& ranks : kRanks) {
    const Adapters adapters(ranks, at::kFloat);
    const auto n = static_cast<int64_t>(ranks.size());
    CAPTURE(n);
    auto products = [&](const std::function<std::vector<Tensor>()>& forward) {
      const CountProducts count;
      const std::vector<Tensor> ys = forward();
      const int64_t forwards = count.made();
      backward(ys);
      adapters.take();
      return std::pair(forwards, count.made() - forwards);
    };
    // h and B h; B and u of each, x and A.
    CHECK(products([&] { return adapters.together(); }) == std::pair(1 + n, 2 * n + 2));
    CHECK(products([&] { return adapters.apart(); }) == std::pair(2 * n, 4 * n));
  }
}

TEST_CASE("adapters that read one x: one that nobody uses, others that do not train") {
  const Adapters adapters({2, 3, 1}, at::kDouble);
  for (size_t left_out : {0U, 1U, 2U}) {
    CAPTURE(left_out);
    backward(adapters.by_torch(), left_out);
    const std::vector<Tensor> wanted = adapters.take();
    CHECK(!wanted[1 + 2 * left_out].defined());
    backward(adapters.together(), left_out);
    same(adapters.take(), wanted);
  }
  adapters.in[0].set_requires_grad(false);
  adapters.out[1].set_requires_grad(false);
  adapters.x.set_requires_grad(false);
  backward(adapters.by_torch());
  const std::vector<Tensor> wanted = adapters.take();
  CHECK(!wanted[0].defined());
  CHECK(!wanted[1].defined());
  CHECK(wanted[3].defined());
  backward(adapters.together());
  same(adapters.take(), wanted);
}

TEST_CASE("adapters that read one x: gradients of all factors wait, and add up") {
  const Adapters adapters({2, 3, 1}, at::kFloat);
  for (int i = 0; i < 2; ++i) backward(adapters.together());
  const std::vector<Tensor> wanted = adapters.take();
  auto queue = std::make_shared<meshwright::detail::WeightGradients>();
  for (int i = 0; i < 2; ++i) {
    {
      meshwright::detail::WeightGradientScope scope(queue);
      backward(adapters.together());
    }
    if (i == 0)
      for (size_t j = 0; j < 3; ++j) {
        CHECK(!adapters.in[j].grad().defined());
        CHECK(!adapters.out[j].grad().defined());
      }
    CHECK(!queue->empty());
    queue->run();
  }
  const std::vector<Tensor> late = adapters.take();
  for (size_t i = 0; i < wanted.size(); ++i) CHECK(late[i].equal(wanted[i]));
}

TEST_CASE("adapters that read one x: second derivatives, and a backward that runs twice") {
  const Adapters adapters({2, 3, 1}, at::kDouble);
  auto second = [&](const std::vector<Tensor>& ys) {
    const Tensor sum = ys[0].sin().sum() + ys[1].sin().sum() + ys[2].sin().sum();
    const Tensor slope = torch::autograd::grad({sum}, {adapters.x}, {}, /*retain_graph=*/true,
                                               /*create_graph=*/true)[0];
    slope.square().sum().backward();
    return adapters.take();
  };
  same(second(adapters.together()), second(adapters.by_torch()));
  auto twice = [&](const std::vector<Tensor>& ys) {
    const Tensor sum = ys[0].sin().sum() + ys[1].sin().sum() + ys[2].sin().sum();
    sum.backward({}, /*retain_graph=*/true);
    sum.backward();
    return adapters.take();
  };
  same(twice(adapters.together()), twice(adapters.by_torch()));
}

}  // namespace low_rank_test
