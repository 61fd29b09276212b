// AdamW and SGD against the formulas of their papers in double precision and against LibTorch's own
// loops over parameters.
#include "engine/train/step/optimizer.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <functional>
#include <utility>

#include "meshwright/error.h"
#include "meshwright/trainer.h"

namespace optimizer_test {

using namespace meshwright;
using meshwright::train::make_optimizer;
using meshwright::train::Optimizer;

namespace {

using Keys = std::vector<std::pair<std::string, std::string>>;

std::unique_ptr<Optimizer> optimizer_of(const Keys& keys) {
  Job job;
  for (const auto& [key, value] : keys) job.set("optimizer." + key, value);
  return make_optimizer(job.table("optimizer"));
}

std::vector<at::Tensor> random_tensors(const std::vector<int64_t>& sizes, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  std::vector<at::Tensor> out;
  for (int64_t n : sizes) out.push_back(at::randn({n}, generator, at::TensorOptions()));
  return out;
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return a.numel() == 0 ? 0 : (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

// One element in double precision, as the papers have it: decay first, decoupled from the gradient.
struct HandAdamW {
  double lr, beta1, beta2, eps, decay, value, m = 0, v = 0;
  int64_t t = 0;
  void step(double g) {
    ++t;
    value -= lr * decay * value;
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    double m_hat = m / (1 - std::pow(beta1, t)), v_hat = v / (1 - std::pow(beta2, t));
    value -= lr * m_hat / (std::sqrt(v_hat) + eps);
  }
};

const std::vector<int64_t> kSizes = {1, 7, 64, 1000, 0, 33};

}  // namespace

// Also where gradients are narrower than weights, or weights than their main ones: there the factor
// may not get lost in a copy.
TEST_CASE("a factor of an update is a multiplication of its gradients, which keep it") {
  struct Row {
    const char* what;
    Keys keys;
    at::ScalarType values, gradients;
  };
  for (const Row& row : {Row{"AdamW", {{"name", "\"adamw\""}}, at::kFloat, at::kFloat},
                         {"SGD", {{"name", "\"sgd\""}}, at::kFloat, at::kFloat},
                         {"narrow", {{"name", "\"sgd\""}}, at::kFloat, at::kBFloat16},
                         {"main weights",
                          {{"name", "\"sgd\""}, {"main_dtype", "float32"}},
                          at::kBFloat16,
                          at::kFloat}}) {
    CAPTURE(row.what);
    constexpr double kFactor = 0.25;  // exact in all dtypes
    auto within = optimizer_of(row.keys), before = optimizer_of(row.keys);
    std::vector<FlatParameterGroup> one, other;
    const std::vector<at::Tensor> values = random_tensors(kSizes, 1),
                                  gradients = random_tensors(kSizes, 2);
    for (size_t k = 0; k < values.size(); ++k)
      for (auto* groups : {&one, &other})
        groups->push_back({values[k].to(row.values, false, /*copy=*/true),
                           gradients[k].to(row.gradients, false, /*copy=*/true)});
    for (int step = 0; step < 3; ++step) {
      within->step(one, 0.1, kFactor);
      meshwright::train::multiply_gradients(other, kFactor);
      before->step(other, 0.1);
      for (size_t k = 0; k < one.size(); ++k) {
        CHECK(one[k].values.equal(other[k].values));
        CHECK(one[k].grads.equal(other[k].grads));
        if (values[k].numel() > 0 && step == 0)
          CHECK_FALSE(one[k].values.equal(values[k].to(row.values)));
      }
    }
  }
}

TEST_CASE(
    "AdamW is the paper's, element by element, with the decay of every group and a rate that "
    "changes") {
  for (double decay : {0.0, 0.1}) {
    auto optimizer = optimizer_of({{"name", "\"adamw\""},
                                   {"betas", "[0.8, 0.95]"},
                                   {"eps", "1e-6"},
                                   {"weight_decay", std::to_string(decay)}});
    std::vector<at::Tensor> values = random_tensors(kSizes, 1);
    std::vector<std::vector<HandAdamW>> hand;
    for (const at::Tensor& value : values) {
      hand.emplace_back();
      for (int64_t i = 0; i < value.numel(); ++i)
        hand.back().push_back({0, 0.8, 0.95, 1e-6, decay, value[i].item<double>()});
    }
    for (int step = 0; step < 6; ++step) {
      std::vector<at::Tensor> grads = random_tensors(kSizes, 100 + static_cast<uint64_t>(step));
      std::vector<FlatParameterGroup> groups;
      for (size_t k = 0; k < values.size(); ++k) groups.push_back({values[k], grads[k]});
      double lr = 0.01 * (step + 1);
      optimizer->step(groups, lr);
      for (size_t k = 0; k < values.size(); ++k)
        for (int64_t i = 0; i < values[k].numel(); ++i) {
          HandAdamW& one = hand[k][static_cast<size_t>(i)];
          one.lr = lr;
          one.step(grads[k][i].item<double>());
          CHECK(values[k][i].item<double>() == doctest::Approx(one.value).epsilon(2e-5).scale(1));
        }
    }
    CHECK(optimizer->steps == 6);
    // What a checkpoint would keep.
    std::vector<Optimizer::State> state = optimizer->state();
    REQUIRE(state.size() == 2);
    CHECK(state[0].name == "exp_avg");
    CHECK(state[1].name == "exp_avg_sq");
    for (size_t k = 0; k < kSizes.size(); ++k)
      for (int64_t i = 0; i < kSizes[k]; ++i) {
        const HandAdamW& one = hand[k][static_cast<size_t>(i)];
        CHECK(state[0].tensors[k][i].item<double>() ==
              doctest::Approx(one.m).epsilon(1e-5).scale(1));
        CHECK(state[1].tensors[k][i].item<double>() ==
              doctest::Approx(one.v).epsilon(1e-5).scale(1));
      }
  }
}

TEST_CASE("AdamW and SGD equal LibTorch's loops over parameters") {
  struct Row {
    const char* what;
    Keys keys;
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)> loop;
  };
  auto sgd = [](double momentum, double decay) {
    return [=](std::vector<at::Tensor> p) -> std::unique_ptr<torch::optim::Optimizer> {
      return std::make_unique<torch::optim::SGD>(
          std::move(p), torch::optim::SGDOptions(0.05).momentum(momentum).weight_decay(decay));
    };
  };
  for (const Row& row : std::vector<Row>{
           {"AdamW",
            {{"name", "\"adamw\""},
             {"betas", "[0.9, 0.999]"},
             {"eps", "1e-8"},
             {"weight_decay", "0.01"}},
            [](std::vector<at::Tensor> p) -> std::unique_ptr<torch::optim::Optimizer> {
              return std::make_unique<torch::optim::AdamW>(std::move(p),
                                                           torch::optim::AdamWOptions(0.05)
                                                               .betas({0.9, 0.999})
                                                               .eps(1e-8)
                                                               .weight_decay(0.01));
            }},
           {"SGD", {{"name", "\"sgd\""}, {"momentum", "0"}, {"weight_decay", "0"}}, sgd(0, 0)},
           {"SGD with decay",
            {{"name", "\"sgd\""}, {"momentum", "0"}, {"weight_decay", "0.1"}},
            sgd(0, 0.1)},
           {"SGD with momentum",
            {{"name", "\"sgd\""}, {"momentum", "0.9"}, {"weight_decay", "0.1"}},
            sgd(0.9, 0.1)},
       }) {
    INFO(std::string(row.what));
    auto ours = optimizer_of(row.keys);
    std::vector<at::Tensor> values = random_tensors(kSizes, 1), theirs = random_tensors(kSizes, 1);
    for (at::Tensor& t : theirs) t.requires_grad_(true);
    auto loop = row.loop(theirs);
    for (int step = 0; step < 10; ++step) {
      std::vector<at::Tensor> grads = random_tensors(kSizes, 50 + static_cast<uint64_t>(step));
      std::vector<FlatParameterGroup> groups;
      for (size_t k = 0; k < values.size(); ++k) {
        groups.push_back({values[k], grads[k].clone()});
        theirs[k].mutable_grad() = grads[k].clone();
      }
      ours->step(groups, 0.05);
      loop->step();
      for (size_t k = 0; k < values.size(); ++k) {
        CHECK(difference(values[k], theirs[k].detach()) < 2e-6);
        CHECK(difference(groups[k].grads, grads[k]) == 0);  // gradients are the strategy's
      }
    }
  }
}

TEST_CASE("SGD on weights of 16 bits is that of float32, rounded once a step") {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf})
    for (const char* momentum : {"0", "0.9"}) {
      CAPTURE(at::toString(type));
      auto ours =
          optimizer_of({{"name", "\"sgd\""}, {"momentum", momentum}, {"weight_decay", "0.1"}});
      std::vector<at::Tensor> values = random_tensors(kSizes, 1), buffers(values.size());
      for (at::Tensor& t : values) t = t.to(type);
      for (int step = 0; step < 4; ++step) {
        const std::vector<at::Tensor> drawn =
            random_tensors(kSizes, 50 + static_cast<uint64_t>(step));
        std::vector<FlatParameterGroup> groups;
        std::vector<at::Tensor> wanted;
        for (size_t k = 0; k < values.size(); ++k) {
          groups.push_back({values[k], drawn[k].to(type)});
          const at::Tensor was = values[k].to(at::kFloat);
          at::Tensor change = groups[k].grads.to(at::kFloat) + was * 0.1;
          if (std::string_view(momentum) != "0") {
            if (step > 0) change = change + buffers[k].to(at::kFloat) * 0.9;
            buffers[k] = change.to(type);
          }
          wanted.push_back((was - change * 0.05).to(type));
        }
        ours->step(groups, 0.05);
        for (size_t k = 0; k < values.size(); ++k) CHECK(values[k].equal(wanted[k]));
      }
    }
}

TEST_CASE("how parameters are put together into groups changes nothing") {
  for (const char* name : {"\"adamw\"", "\"sgd\""}) {
    Keys keys = {{"name", name}, {"weight_decay", "0.1"}};
    if (std::string(name) == "\"sgd\"") keys.push_back({"momentum", "0.9"});
    auto apart = optimizer_of(keys), together = optimizer_of(keys);
    std::vector<at::Tensor> values = random_tensors(kSizes, 3);
    at::Tensor flat = at::cat(values);
    for (int step = 0; step < 5; ++step) {
      std::vector<at::Tensor> grads = random_tensors(kSizes, 70 + static_cast<uint64_t>(step));
      std::vector<FlatParameterGroup> groups;
      for (size_t k = 0; k < values.size(); ++k) groups.push_back({values[k], grads[k]});
      apart->step(groups, 0.02);
      together->step({{flat, at::cat(grads)}}, 0.02);
    }
    CHECK(at::cat(values).equal(flat));
  }
}

// What is behind the last whole vector of a tensor goes through another code path of LibTorch's,
// which rounds otherwise: ranks that hold the same parameter hold others beside it.
TEST_CASE("an element's update is the same bits wherever it lies in its group and its class") {
  constexpr int64_t kCount = 131;
  struct Row {
    const char* what;
    Keys keys;
    at::ScalarType values, gradients;
    double factor = 1;
  };
  for (const Row& row : {
           Row{"AdamW", {{"name", "\"adamw\""}}, at::kFloat, at::kFloat},
           Row{"AdamW, clipped late", {{"name", "\"adamw\""}}, at::kFloat, at::kFloat, 0.37},
           Row{"AdamW in float64", {{"name", "\"adamw\""}}, at::kDouble, at::kDouble},
           Row{"AdamW in bfloat16", {{"name", "\"adamw\""}}, at::kBFloat16, at::kBFloat16},
           Row{"AdamW in float16", {{"name", "\"adamw\""}}, at::kHalf, at::kHalf, 0.37},
           Row{"AdamW, other gradients", {{"name", "\"adamw\""}}, at::kFloat, at::kHalf, 0.37},
           Row{"AdamW, main weights",
               {{"name", "\"adamw\""}, {"main_dtype", "float32"}},
               at::kBFloat16,
               at::kBFloat16},
           Row{"SGD",
               {{"name", "\"sgd\""}, {"momentum", "0.9"}, {"weight_decay", "0.1"}},
               at::kFloat,
               at::kFloat},
           Row{"SGD in bfloat16",
               {{"name", "\"sgd\""}, {"momentum", "0.9"}, {"weight_decay", "0.1"}},
               at::kBFloat16,
               at::kBFloat16},
       }) {
    INFO(std::string(row.what));
    // After two steps, of all elements that `begin` and `count` say, in two classes of ranges.
    auto updated = [&](int64_t begin, int64_t count, int64_t cut) {
      auto optimizer = optimizer_of(row.keys);
      FlatParameterGroup group{
          random_tensors({kCount}, 1)[0].to(row.values).narrow(0, begin, count).clone(), {}};
      optimizer->set_classes({{1, 0.1, {{0, 0, cut}}}, {1, 0.1, {{0, cut, count - cut}}}});
      for (uint64_t step = 2; step < 4; ++step) {
        group.grads =
            random_tensors({kCount}, step)[0].to(row.gradients).narrow(0, begin, count).clone();
        optimizer->step({group}, 0.01, row.factor);
      }
      return std::pair(group.values, group.grads);
    };
    // By steps of fewer than any vector.
    const auto [values, grads] = updated(0, kCount, 0);
    int64_t unlike = 0;
    for (int64_t begin = 0; begin < 70; begin += 3)
      for (int64_t count : {1, 15, 33, 61}) {
        const auto [part, gradient] = updated(begin, count, count * 2 / 5);
        unlike += !part.equal(values.narrow(0, begin, count)) ||
                  !gradient.equal(grads.narrow(0, begin, count));
      }
    CHECK(unlike == 0);
  }
}

// One flat tensor that is cut into classes between and within what a shard would hold.
TEST_CASE("classes of ranges are torch.optim's param_groups") {
  const std::vector<std::pair<double, double>> rules = {{1, 0.1}, {0.1, 0.3}, {2, 0}};
  const std::vector<size_t> rule_of = {0, 1, 2, 0, 1, 2};  // of kSizes
  for (const char* name : {"\"adamw\"", "\"sgd\""}) {
    INFO(std::string(name));
    const bool adamw = std::string(name) == "\"adamw\"";
    Keys keys = {{"name", name}, {"weight_decay", "0.7"}};  // which no class has
    if (!adamw) keys.emplace_back("momentum", "0.9");
    auto ours = optimizer_of(keys);
    std::vector<at::Tensor> theirs = random_tensors(kSizes, 4);
    at::Tensor flat = at::cat(theirs), grads = at::zeros_like(flat);
    std::vector<train::UpdateClass> classes;
    for (const auto& [factor, decay] : rules) classes.push_back({factor, decay, {}});
    int64_t begin = 0;
    for (size_t k = 0; k < kSizes.size(); ++k) {
      classes[rule_of[k]].ranges.push_back({0, begin, kSizes[k]});
      begin += kSizes[k];
    }
    ours->set_classes(classes);
    std::vector<torch::optim::OptimizerParamGroup> groups;
    for (size_t k = 0; k < kSizes.size(); ++k) {
      theirs[k].requires_grad_(true);
      std::unique_ptr<torch::optim::OptimizerOptions> options;
      const auto& [factor, decay] = rules[rule_of[k]];
      if (adamw)
        options = std::make_unique<torch::optim::AdamWOptions>(
            torch::optim::AdamWOptions(0).betas({0.9, 0.95}).eps(1e-8).weight_decay(decay));
      else
        options = std::make_unique<torch::optim::SGDOptions>(
            torch::optim::SGDOptions(1).momentum(0.9).weight_decay(decay));
      groups.emplace_back(std::vector<at::Tensor>{theirs[k]}, std::move(options));
    }
    std::unique_ptr<torch::optim::Optimizer> loop;
    if (adamw)
      loop = std::make_unique<torch::optim::AdamW>(groups, torch::optim::AdamWOptions(0));
    else
      loop = std::make_unique<torch::optim::SGD>(groups, torch::optim::SGDOptions(1));
    for (int step = 0; step < 6; ++step) {
      const double lr = 0.01 * (step + 1);
      std::vector<at::Tensor> fresh = random_tensors(kSizes, 200 + static_cast<uint64_t>(step));
      grads.copy_(at::cat(fresh));
      ours->step({{flat, grads}}, lr);
      for (size_t k = 0; k < kSizes.size(); ++k) {
        theirs[k].mutable_grad() = fresh[k].clone();
        loop->param_groups()[k].options().set_lr(lr * rules[rule_of[k]].first);
      }
      loop->step();
      begin = 0;
      for (size_t k = 0; k < kSizes.size(); ++k) {
        CHECK(difference(flat.narrow(0, begin, kSizes[k]), theirs[k].detach()) < 2e-6);
        begin += kSizes[k];
      }
    }
  }
}

TEST_CASE("classes over main weights are the same as optimizers of their own") {
  const Keys keys = {{"main_dtype", "float32"}, {"weight_decay", "0.1"}};
  auto together = optimizer_of(keys), one = optimizer_of(keys), two = optimizer_of(keys);
  constexpr int64_t kCount = 500, kFirst = 123;
  const at::Tensor values = random_tensors({kCount}, 5)[0].to(at::kBFloat16),
                   apart = values.clone();
  together->set_classes({{1, 0.1, {{0, kFirst, kCount - kFirst}}}, {0.5, 0, {{0, 0, kFirst}}}});
  two->set_classes({{0.5, 0, {{0, 0, kFirst}}}});
  for (int step = 0; step < 4; ++step) {
    const at::Tensor grads =
        random_tensors({kCount}, 300 + static_cast<uint64_t>(step))[0].to(at::kBFloat16);
    together->step({{values, grads}}, 0.01);
    two->step({{apart.narrow(0, 0, kFirst), grads.narrow(0, 0, kFirst)}}, 0.01);
    one->step(
        {{apart.narrow(0, kFirst, kCount - kFirst), grads.narrow(0, kFirst, kCount - kFirst)}},
        0.01);
    CHECK(values.equal(apart));
  }
}

TEST_CASE("AdamW wants two betas") {
  Job job;
  try {
    job.set("optimizer.betas", "[0.9]");
    make_optimizer(job.table("optimizer"));
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::out_of_range);
    CHECK(error.key() == "optimizer.betas");
    CHECK(!error.helps().empty());
  }
}

}  // namespace optimizer_test
