// Routers against the numbers of their definition, and against straightforward loops.
#include <ATen/ops/arange.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "meshwright/error.h"
#include "meshwright/nn/moe.h"
#include "meshwright/parallel/activation_checkpoint.h"

namespace moe_router_test {

namespace {

using at::Tensor;
using meshwright::MoeConfig;
using meshwright::Router;
using meshwright::Routing;
using meshwright::ScoreFunction;

MoeConfig config_of(int64_t experts, int64_t active,
                    ScoreFunction function = ScoreFunction::softmax) {
  MoeConfig c;
  c.dim = experts;
  c.moe_inter_dim = 4;
  c.n_routed_experts = experts;
  c.n_activated_experts = active;
  c.score_func = function;
  return c;
}

// A router whose logits are its input.
Router identity_router(const MoeConfig& config) {
  Router router(config);
  c10::NoGradGuard no_grad;
  router->weight.zero_();
  router->weight.diagonal().fill_(1);
  return router;
}

std::vector<double> values(const Tensor& t) {
  Tensor flat = t.detach().to(at::kDouble).contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

double distance(const Tensor& a, const Tensor& b) {
  return (a.detach() - b.detach()).abs().max().item<double>();
}

}  // namespace

TEST_CASE("routers give the numbers of their definition") {
  struct Row {
    const char* name;
    ScoreFunction function;
    bool before, normalised;
    double scale;
    std::vector<double> weights;
  };
  const Row rows[] = {
      {"softmax after", ScoreFunction::softmax, false, false, 1, {0.7311, 0.2689}},
      {"softmax before", ScoreFunction::softmax, true, false, 1, {0.6439, 0.2369}},
      {"softmax before, normalised", ScoreFunction::softmax, true, true, 1, {0.7311, 0.2689}},
      {"sigmoid", ScoreFunction::sigmoid, false, false, 1, {0.8808, 0.7311}},
      {"sigmoid normalised", ScoreFunction::sigmoid, false, true, 1, {0.5464, 0.4536}},
      {"sigmoid normalised and scaled",
       ScoreFunction::sigmoid,
       false,
       true,
       2.5,
       {1.3661, 1.1339}}};
  for (const Row& row : rows) {
    INFO(row.name);
    MoeConfig config = config_of(4, 2, row.function);
    config.softmax_before_topk = row.before;
    config.norm_topk_prob = row.normalised;
    config.route_scale = row.scale;
    Routing routing = identity_router(config)(at::tensor({2.0F, 1.0F, 0.0F, -1.0F}).unsqueeze(0));
    CHECK(values(routing.indices) == std::vector<double>{0, 1});
    std::vector<double> weights = values(routing.weights);
    for (size_t i = 0; i < 2; ++i)
      CHECK(weights[i] == doctest::Approx(row.weights[i]).epsilon(2e-4));
  }
}

namespace {

// The table of score functions in docs/experts.md, token by token: the selected experts in order of
// their selection scores, and their weights.
struct Reference {
  std::vector<std::vector<int64_t>> indices;
  std::vector<std::vector<double>> weights;
};

Reference reference(const MoeConfig& c, const Tensor& logits, const std::vector<double>& bias) {
  Reference out;
  auto experts = static_cast<size_t>(c.n_routed_experts);
  for (int64_t t = 0; t < logits.size(0); ++t) {
    std::vector<double> x = values(logits.select(0, t)), score(experts), select(experts);
    double sum = 0;
    for (double v : x) sum += std::exp(v);
    for (size_t e = 0; e < experts; ++e) {
      bool soft = c.score_func == ScoreFunction::softmax ||
                  c.score_func == ScoreFunction::softmax_with_bias;
      score[e] = soft ? std::exp(x[e]) / sum
                 : c.score_func == ScoreFunction::sqrtsoftplus
                     ? std::sqrt(std::log1p(std::exp(x[e])))
                     : 1 / (1 + std::exp(-x[e]));
      select[e] = score[e] + (c.score_func == ScoreFunction::softmax || bias.empty() ? 0 : bias[e]);
    }
    std::vector<double> corrected = select;
    bool grouped = c.n_expert_groups > 1 && c.score_func != ScoreFunction::softmax &&
                   c.score_func != ScoreFunction::sqrtsoftplus;
    if (grouped) {
      auto groups = static_cast<size_t>(c.n_expert_groups);
      size_t size = experts / groups;
      std::vector<std::pair<double, size_t>> best;
      for (size_t g = 0; g < groups; ++g) {
        std::vector<double> of(select.begin() + static_cast<long>(g * size),
                               select.begin() + static_cast<long>((g + 1) * size));
        std::sort(of.rbegin(), of.rend());
        bool sum_of_two = c.score_func != ScoreFunction::sigmoid || !bias.empty();
        best.emplace_back(-(of[0] + (sum_of_two ? of[1] : 0)), g);
      }
      std::sort(best.begin(), best.end());
      for (size_t i = static_cast<size_t>(c.n_limited_groups); i < groups; ++i)
        for (size_t e = 0; e < size; ++e)
          select[best[i].second * size + e] = c.score_func == ScoreFunction::sigmoid_with_bias
                                                  ? -std::numeric_limits<double>::infinity()
                                                  : 0;
    }
    std::vector<size_t> order(experts);
    for (size_t e = 0; e < experts; ++e) order[e] = e;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return select[a] > select[b]; });
    order.resize(static_cast<size_t>(c.n_activated_experts));
    std::vector<double> weights;
    double chosen = 0, total = 0;
    for (size_t e : order) chosen += std::exp(x[e]);
    for (size_t e : order) {
      bool after = c.score_func == ScoreFunction::softmax && !c.softmax_before_topk;
      weights.push_back(after                                        ? std::exp(x[e]) / chosen
                        : c.router_weight_uses_score_correction_bias ? corrected[e]
                                                                     : score[e]);
      total += weights.back();
    }
    for (double& w : weights)
      w = (c.norm_topk_prob && order.size() > 1 ? w / (total + 1e-20) : w) * c.route_scale;
    out.indices.emplace_back(order.begin(), order.end());
    out.weights.push_back(weights);
  }
  return out;
}

}  // namespace

TEST_CASE(
    "every score function, with groups, biases, normalisation and scale, routes as a loop over "
    "tokens does") {
  at::manual_seed(7);
  struct Row {
    ScoreFunction function;
    bool before, bias, weight_with_bias;
    int64_t groups, limited;
  };
  const Row rows[] = {{ScoreFunction::softmax, true, false, false, 1, 1},
                      {ScoreFunction::softmax, false, false, false, 1, 1},
                      {ScoreFunction::softmax_with_bias, false, true, false, 1, 1},
                      {ScoreFunction::softmax_with_bias, false, true, false, 4, 2},
                      {ScoreFunction::sigmoid_with_bias, false, true, false, 1, 1},
                      {ScoreFunction::sigmoid_with_bias, false, true, false, 4, 2},
                      {ScoreFunction::sqrtsoftplus, false, true, false, 1, 1},
                      {ScoreFunction::sigmoid, false, false, false, 1, 1},
                      {ScoreFunction::sigmoid, false, false, false, 4, 2},
                      {ScoreFunction::sigmoid, false, true, false, 4, 2},
                      {ScoreFunction::sigmoid, false, true, true, 2, 1}};
  int checked = 0;
  for (const Row& row : rows)
    for (bool normalised : {false, true}) {
      CAPTURE(checked);
      MoeConfig config = config_of(12, 3, row.function);
      config.softmax_before_topk = row.before;
      config.norm_topk_prob = normalised;
      config.route_scale = 1.7;
      config.n_expert_groups = row.groups;
      config.n_limited_groups = row.limited;
      config.force_e_score_correction_bias = row.bias;
      config.router_weight_uses_score_correction_bias = row.weight_with_bias;
      config.router_bias = true;
      config.dim = 6;
      Router router(config);
      c10::NoGradGuard no_grad;
      router->weight.normal_(0, 1);
      router->bias.normal_(0, 1);
      if (row.bias)
        router->e_score_correction_bias.normal_(0, 0.3)
            .abs_();  // zeros of left-out groups stay below
      Tensor x = at::randn({40, 6});
      Routing routing = router(x);
      Reference expected =
          reference(config, at::linear(x, router->weight, router->bias),
                    row.bias ? values(router->e_score_correction_bias) : std::vector<double>{});
      for (int64_t t = 0; t < 40; ++t)
        for (int64_t j = 0; j < 3; ++j) {
          CHECK(routing.indices[t][j].item<int64_t>() ==
                expected.indices[static_cast<size_t>(t)][static_cast<size_t>(j)]);
          CHECK(routing.weights[t][j].item<double>() ==
                doctest::Approx(expected.weights[static_cast<size_t>(t)][static_cast<size_t>(j)])
                    .epsilon(1e-5));
        }
      ++checked;
    }
  CHECK(checked == 22);
}

TEST_CASE(
    "weights have the tokens' dtype unless they are to stay float32, and logits the precision that "
    "is asked for") {
  MoeConfig config = config_of(8, 2);
  Tensor x = at::randn({5, 8}).to(at::kBFloat16);
  CHECK((identity_router(config)(x).weights.scalar_type() == at::kBFloat16));
  config.router_weights_fp32 = true;
  CHECK((identity_router(config)(x).weights.scalar_type() == at::kFloat));
  config.gate_precision = at::kDouble;
  Routing exact = identity_router(config)(x);
  CHECK((exact.weights.scalar_type() == at::kDouble));
  CHECK(distance(exact.weights, x.to(at::kDouble).gather(1, exact.indices).softmax(-1)) < 1e-12);
}

TEST_CASE("masked tokens go nowhere and are not counted") {
  Router router = identity_router(config_of(4, 2));
  Tensor x = at::randn({6, 4}).set_requires_grad(true);
  Tensor mask = at::tensor({1, 0, 1, 1, 0, 0}).to(at::kBool);
  Routing routing = router(x, mask);
  for (int64_t t : {1, 4, 5}) {
    CHECK(routing.indices[t].eq(-1).all().item<bool>());
    CHECK(routing.weights[t].abs().sum().item<double>() == 0);
  }
  CHECK(routing.indices[0].ge(0).all().item<bool>());
  CHECK(router->load().sum().item<int64_t>() == 6);
  routing.weights.square().sum().backward();
  CHECK(x.grad()[1].abs().sum().item<double>() == 0);
  CHECK(x.grad()[0].abs().sum().item<double>() > 0);
}

TEST_CASE("load adds up over passes of training and no others") {
  Router router = identity_router(config_of(4, 2));
  Tensor x = at::tensor({2.0F, 1.0F, 0.0F, -1.0F}).expand({5, 4}).contiguous();
  router(x), router(x);
  CHECK(values(router->load()) == std::vector<double>{10, 10, 0, 0});
  router->eval();
  router(x);
  CHECK(router->load().sum().item<int64_t>() == 20);
  router->reset_load();
  CHECK(router->load().sum().item<int64_t>() == 0);
}

TEST_CASE(
    "the auxiliary loss is 1 where routing is even, and its gradient is that of its definition") {
  for (bool before : {false, true})
    for (bool masked : {false, true}) {
      CAPTURE(before);
      CAPTURE(masked);
      MoeConfig config = config_of(6, 2);
      config.softmax_before_topk = before;
      config.aux_loss_coeff = 0.5;
      Router router = identity_router(config);
      // Even: each pair of experts is preferred by as many tokens, all by the same little.
      Tensor even = at::zeros({6, 6});
      for (int64_t t = 0; t < 6; ++t) even[t][t] = 1e-6F, even[t][(t + 1) % 6] = 1e-6F;
      router(even);
      CHECK(router->load_balance->value().item<double>() / 0.5 == doctest::Approx(1).epsilon(1e-5));

      at::manual_seed(3);
      Tensor x = at::randn({20, 6}).set_requires_grad(true);
      std::optional<Tensor> mask;
      if (masked) mask = at::rand({20}).gt(0.4);
      Routing routing = router(x, mask);
      router->load_balance->set_scale(3);
      (routing.weights * 0).sum().backward();  // what is left is the auxiliary loss alone

      Tensor y = x.detach().clone().set_requires_grad(true);
      Tensor counted = mask ? mask->to(at::kFloat) : at::zeros({20}) + 1, scores = y.softmax(-1);
      Tensor chosen = at::zeros({20, 6}).scatter_(1, std::get<1>(scores.topk(2, -1)), 1.0) *
                      counted.unsqueeze(1);
      Tensor tokens = counted.sum(), load = chosen.sum(0);
      Tensor loss =
          (load * 6 / (2 * tokens) * (scores * counted.unsqueeze(1)).sum(0) / tokens).sum();
      (loss * 0.5 * 3).backward();
      CHECK(router->load_balance->value().item<double>() ==
            doctest::Approx(0.5 * loss.item<double>()).epsilon(1e-5));
      CHECK(y.grad().abs().max().item<double>() > 1e-3);
      CHECK(distance(x.grad(), y.grad()) < 1e-6);
    }
}

TEST_CASE("routers that share one auxiliary loss are taken together") {
  using meshwright::LoadBalance;
  auto balance = std::make_shared<LoadBalance>(0.1, LoadBalance::Form::whole_model);
  Router a = identity_router(config_of(4, 2)), b = identity_router(config_of(4, 2));
  a->load_balance = b->load_balance = balance;
  CHECK(!balance->value().defined());
  at::manual_seed(5);
  Tensor x = at::randn({10, 4}).set_requires_grad(true),
         y = at::randn({10, 4}).set_requires_grad(true);
  for (int pass = 0; pass < 2; ++pass) {
    balance->begin_pass();
    x.mutable_grad() = Tensor(), y.mutable_grad() = Tensor();
    Tensor sum = (a(x).weights * 0).sum() + (b(y).weights * 0).sum();
    sum.backward();
    Tensor u = x.detach().clone().set_requires_grad(true),
           v = y.detach().clone().set_requires_grad(true);
    Tensor scores = at::cat({u.softmax(-1), v.softmax(-1)});
    Tensor load = at::zeros({20, 4}).scatter_(1, std::get<1>(scores.topk(2, -1)), 1.0).mean(0);
    Tensor loss = (load * scores.mean(0)).sum() * 4 * 0.1;
    loss.backward();
    CHECK(balance->value().item<double>() == doctest::Approx(loss.item<double>()).epsilon(1e-5));
    CHECK(distance(x.grad(), u.grad()) < 1e-6);
    CHECK(distance(y.grad(), v.grad()) < 1e-6);
  }
}

TEST_CASE("for measuring speed tokens go to experts in turns, and load is counted as ever") {
  MoeConfig config = config_of(4, 3, ScoreFunction::softmax);
  Router router = identity_router(config);
  router->in_turns = true;
  Tensor x = at::randn({4, 4}).set_requires_grad(true),
         mask = at::tensor({1, 1, 0, 1}).to(at::kBool);
  meshwright::Routing routing = router(x, mask);
  CHECK(routing.indices.equal(
      at::tensor({0, 1, 2, 3, 0, 1, -1, -1, -1, 1, 2, 3}, at::kLong).view({4, 3})));
  CHECK(values(routing.weights.select(1, 0)) ==
        std::vector<double>{1.0F / 3, 1.0F / 3, 0, 1.0F / 3});
  routing.weights.sum().backward();
  CHECK(router->weight.grad().abs().max().item<double>() == 0);  // but it is there
  CHECK(router->load().equal(at::tensor({2, 3, 2, 2}, at::kLong)));
}

TEST_CASE("the score correction bias moves against the load, and says why when it cannot") {
  MoeConfig config = config_of(4, 2, ScoreFunction::sigmoid_with_bias);
  config.gate_bias_update_factor = 0.01;
  Router router = identity_router(config);
  CHECK(router->updates_bias());
  router->update_bias(at::tensor({4, 0, 2, 2}));
  std::vector<double> bias = values(router->e_score_correction_bias);
  CHECK(bias[0] == doctest::Approx(-0.01));
  CHECK(bias[1] == doctest::Approx(0.01));
  CHECK(bias[2] == 0);
  using meshwright::Error;
  CHECK_THROWS_AS(router->update_bias(at::zeros({4})), Error);
  router->eval();
  CHECK_THROWS_AS(router->update_bias(at::tensor({4, 0, 2, 2})), Error);
  router->train();
  router->weight.set_requires_grad(false);
  CHECK_THROWS_AS(router->update_bias(at::tensor({4, 0, 2, 2})), Error);
  config.gate_bias_update_factor = 0;
  CHECK_THROWS_AS(identity_router(config)->update_bias(at::tensor({4, 0, 2, 2})), Error);
  config.force_e_score_correction_bias = true;
  Router forced = identity_router(config);
  CHECK(forced->e_score_correction_bias.defined());
  CHECK(!forced->updates_bias());
  CHECK_THROWS_AS(forced->update_bias(at::tensor({4, 0, 2, 2})), Error);
}

}  // namespace moe_router_test
