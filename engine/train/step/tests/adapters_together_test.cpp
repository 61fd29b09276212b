// Adapters beside Linears that read one x: the numbers of LibTorch, whichever of them have one, and
// fewer products where they can share one.
// Before doctest: LibTorch has a CHECK of its own.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>
#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/train/step/adapters.h"
#include "meshwright/nn/layers.h"
#include "meshwright/nn/module.h"
#include "sdk/nn/tests/count_products.h"

namespace adapters_together_test {

using namespace meshwright;
using at::Tensor;

namespace {

constexpr int64_t kIn = 6;

Tensor noise(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed)).mul(0.3).to(at::kDouble);
}

// Whose Linears are called by the test, or, in `order`, by a forward.
struct BlockImpl : torch::nn::Module {
  std::vector<Tensor> forward(const Tensor& x) {
    std::vector<Tensor> ys(linears.size());
    for (size_t i : order) ys[i] = linears[i](x);
    return ys;
  }
  std::vector<Linear> linears;
  std::vector<size_t> order;
};
MESHWRIGHT_MODULE(Block);

// Linears of one module that stay, each with an adapter of its own rank; 0: without.
struct Net {
  std::shared_ptr<torch::nn::Module> root = std::make_shared<torch::nn::Module>("net");
  Block block;
  std::vector<std::string> names;
  std::vector<Linear> linears;
  std::vector<Tensor> in, out;  // undefined: it has no adapter
  plan::Adapters adapters;
  Tensor x = noise({2, 5, kIn}, 1).requires_grad_(),
         memory = noise({2, 5, kIn}, 2).requires_grad_();

  Net(const std::vector<std::pair<const char*, int64_t>>& ranks,
      const std::shared_ptr<train::AdapterDropout>& dropout,
      const std::map<std::string, double>& alphas = {}) {
    root->register_module("block", block);
    adapters.r = 2;
    adapters.alpha = 3;
    for (const auto& [name, alpha] : alphas) adapters.others[name] = {adapters.r, alpha};
    ModelOutline outline;
    uint64_t seed = 10;
    for (const auto& [name, rank] : ranks) {
      names.push_back(std::string("block.") + name);
      const auto width = static_cast<int64_t>(4 + linears.size());
      Linear linear =
          make_linear(kIn, width, /*bias=*/false, at::TensorOptions().dtype(at::kDouble));
      {
        c10::NoGradGuard no_grad;
        linear->weight.copy_(noise({width, kIn}, seed++));
      }
      linear->weight.set_requires_grad(false);
      linears.push_back(block->register_module(name, linear));
      block->linears.push_back(linear);
      if (rank == 0) continue;
      adapters.modules.push_back(names.back());
      outline.parameters.push_back(
          {.name = names.back() + ".lora_A.weight", .shape = {rank, kIn}, .dtype = DType::float64});
      outline.parameters.push_back({.name = names.back() + ".lora_B.weight",
                                    .shape = {width, rank},
                                    .dtype = DType::float64});
    }
    train::attach_adapters(adapters, outline, *root, /*seed=*/7);
    auto parameters = root->named_parameters();
    for (const std::string& name : names) {
      const Tensor* a = parameters.find(name + ".lora_A.weight");
      const Tensor* b = parameters.find(name + ".lora_B.weight");
      in.push_back(a != nullptr ? *a : Tensor());
      out.push_back(b != nullptr ? *b : Tensor());
      if (b == nullptr) continue;
      c10::NoGradGuard no_grad;
      b->copy_(noise(b->sizes(), seed++));  // not zero, as it begins
    }
    train::run_adapters(adapters, outline, *root, dropout);
  }

  // `apart`: those from the second on read the memory.
  const Tensor& read_by(size_t i, bool apart) const { return apart && i > 0 ? memory : x; }
  std::vector<Tensor> ours(bool apart) {
    std::vector<Tensor> ys;
    for (size_t i = 0; i < linears.size(); ++i) ys.push_back(linears[i](read_by(i, apart)));
    return ys;
  }
  std::vector<Tensor> by_torch(bool apart, const train::AdapterDropout* dropout) const {
    std::vector<Tensor> ys;
    for (size_t i = 0; i < linears.size(); ++i) {
      Tensor read = read_by(i, apart), y = at::linear(read, linears[i]->weight);
      double scale = 1.5;
      if (dropout != nullptr) {
        read = read.masked_fill(dropout->dropped(read, names[i], kIn), 0);
        scale /= 1 - dropout->rate();
      }
      if (in[i].defined()) y = y + scale * at::linear(at::linear(read, in[i]), out[i]);
      ys.push_back(y);
    }
    return ys;
  }

  std::vector<Tensor> gradients(const std::vector<Tensor>& ys) const {
    Tensor loss = ys[0].sin().sum();
    for (size_t i = 1; i < ys.size(); ++i) loss = loss + ys[i].sin().sum();
    loss.backward();
    std::vector<Tensor> all;
    for (const auto* tensors : {&in, &out})
      for (const Tensor& t : *tensors)
        if (t.defined()) all.push_back(std::exchange(t.mutable_grad(), Tensor()));
    for (const Tensor& t : {x, memory}) all.push_back(std::exchange(t.mutable_grad(), Tensor()));
    return all;
  }
};

void same(const std::vector<Tensor>& ours, const std::vector<Tensor>& theirs) {
  REQUIRE(ours.size() == theirs.size());
  for (size_t i = 0; i < theirs.size(); ++i) {
    CAPTURE(i);
    REQUIRE(ours[i].defined() == theirs[i].defined());
    if (theirs[i].defined()) CHECK(ours[i].allclose(theirs[i], 1e-12, 1e-12));
  }
}

}  // namespace

TEST_CASE("adapters beside Linears that read one x share a product, in any choice of them") {
  struct Row {
    const char* text;
    std::vector<std::pair<const char*, int64_t>> ranks;
    bool apart, dropout;
    int64_t products;  // of a forward in training: the Linears', those with A, those with B
  };
  const std::vector<Row> rows{
      {"all", {{"q_proj", 2}, {"k_proj", 2}, {"v_proj", 2}}, false, false, 3 + 1 + 3},
      {"of other ranks", {{"q_proj", 2}, {"k_proj", 3}, {"v_proj", 1}}, false, false, 3 + 1 + 3},
      {"one without", {{"q_proj", 2}, {"k_proj", 0}, {"v_proj", 1}}, false, false, 3 + 1 + 2},
      {"one alone", {{"q_proj", 0}, {"k_proj", 3}, {"v_proj", 0}}, false, false, 3 + 1 + 1},
      {"an MLP's", {{"gate_proj", 2}, {"up_proj", 3}}, false, false, 2 + 1 + 2},
      {"of unknown names", {{"q_proj", 2}, {"o_proj", 2}, {"up_proj", 2}}, false, false, 3 + 3 + 3},
      {"of another x", {{"q_proj", 2}, {"k_proj", 2}, {"v_proj", 2}}, true, false, 3 + 2 + 3},
      {"with dropout", {{"q_proj", 2}, {"k_proj", 2}, {"v_proj", 2}}, false, true, 3 + 3 + 3},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    std::shared_ptr<train::AdapterDropout> dropout;
    if (row.dropout) {
      dropout = std::make_shared<train::AdapterDropout>(0.5, 3);
      dropout->begin({.step = 1, .first_row = 0, .rows = 2});
    }
    Net net(row.ranks, dropout);
    const std::vector<Tensor> wanted = net.by_torch(row.apart, dropout.get()),
                              gradients = net.gradients(wanted);
    for (int again = 0; again < 2; ++again) {
      std::vector<Tensor> ours;
      {
        const CountProducts count;
        ours = net.ours(row.apart);
        CHECK(count.made() == row.products);
      }
      same(ours, wanted);
      same(net.gradients(ours), gradients);
      c10::NoGradGuard no_grad;  // nothing is left over from there
      same(net.ours(row.apart), net.by_torch(row.apart, nullptr));
    }
  }
}

TEST_CASE("nothing of a forward is left for the next one, in whatever order Linears are called") {
  struct Row {
    std::vector<size_t> order;
    int64_t products;  // the Linears', those with A, those with B
  };
  // The first one called has the A of those after it; one that is called before its turn its own.
  const std::vector<Row> rows{
      {{0, 1, 2}, 3 + 1 + 3}, {{2, 1, 0}, 3 + 3 + 3}, {{1, 0, 2}, 3 + 2 + 3}, {{0, 2}, 2 + 1 + 2}};
  for (const Row& row : rows) {
    CAPTURE(row.order.size());
    Net net({{"q_proj", 2}, {"k_proj", 2}, {"v_proj", 3}}, nullptr);
    net.block->order = row.order;
    for (int again = 0; again < 3; ++again) {
      // Of the same x, whose version stays.
      std::vector<Tensor> ours;
      {
        const CountProducts count;
        ours = net.block(net.x);
        CHECK(count.made() == row.products);
      }
      const std::vector<Tensor> wanted = net.by_torch(false, nullptr);
      Tensor loss;
      for (size_t i : row.order) {
        CHECK(ours[i].allclose(wanted[i], 1e-12, 1e-12));
        loss = loss.defined() ? loss + ours[i].sum() : ours[i].sum();
      }
      if (again > 0) loss.backward();
      c10::NoGradGuard no_grad;
      for (const Tensor& factor : net.in) factor.add_(0.125);
    }
  }
}

TEST_CASE("where scales take turns, no product is made twice") {
  Net net({{"q_proj", 2}, {"k_proj", 2}, {"v_proj", 2}}, nullptr, {{"block.k_proj", 5.0}});
  const CountProducts count;
  const std::vector<Tensor> ours = net.ours(false);
  CHECK(count.made() == 3 + 2 + 3);
  std::vector<Tensor> wanted = net.by_torch(false, nullptr);
  const Tensor base = at::linear(net.x, net.linears[1]->weight);
  wanted[1] = base + (wanted[1] - base) / 1.5 * 2.5;
  same(ours, wanted);
}

TEST_CASE("adapters read x as it is when it has changed in place") {
  Net net({{"q_proj", 2}, {"k_proj", 2}}, nullptr);
  c10::NoGradGuard no_grad;
  same({net.linears[0](net.x)}, {net.by_torch(false, nullptr)[0]});
  net.x.mul_(2);
  same({net.linears[1](net.x)}, {net.by_torch(false, nullptr)[1]});
}

}  // namespace adapters_together_test
