// Generation: greedy, by temperature, within a context, and the same for the same seed.
#include "engine/train/step/sample.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>

#include "engine/models/running/causal_lm.h"
#include "engine/models/running/initialize.h"
#include "meshwright/error.h"

namespace sample_test {

using namespace meshwright;
using at::Tensor;

namespace {

// Likes the successor of the last token best.
Tensor successor(const Tensor& ids) {
  Tensor logits = at::zeros({1, ids.size(1), 10});
  for (int64_t i = 0; i < ids.size(1); ++i) logits[0][i][(ids[0][i].item<int64_t>() + 1) % 10] = 3;
  return logits;
}

std::string code_of(std::vector<int64_t> prompt, double temperature, int64_t context,
                    float logit = 0) {
  try {
    generate::generate_tokens(
        [&](const Tensor& ids) { return at::full({1, ids.size(1), 4}, logit); }, std::move(prompt),
        {3, temperature, 0, context, {}});
  } catch (const Error& error) {
    return code_string(error.code());
  }
  return "ok";
}

}  // namespace

TEST_CASE("greedy generation takes the most likely token and stops when told") {
  CHECK(generate::generate_tokens(successor, {3}, {5, 0, 0, 100, {}}) ==
        std::vector<int64_t>{4, 5, 6, 7, 8});
  CHECK(generate::generate_tokens(successor, {3}, {5, 0, 0, 100, {1, 6}}) ==
        std::vector<int64_t>{4, 5, 6});
  CHECK(generate::generate_tokens(successor, {3}, {0, 0, 0, 100, {}}).empty());
  CHECK(generate::generate_tokens([](const Tensor& ids) { return at::zeros({1, ids.size(1), 4}); },
                                  {1}, {2, 0, 0, 9, {}}) == std::vector<int64_t>{0, 0});
}

TEST_CASE("the model sees at most the context") {
  std::vector<std::vector<int64_t>> seen;
  auto watch = [&](const Tensor& ids) {
    CHECK(ids.size(0) == 1);
    CHECK_FALSE(c10::GradMode::is_enabled());
    seen.emplace_back(ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + ids.numel());
    return successor(ids);
  };
  generate::generate_tokens(watch, {1, 2}, {4, 0, 0, 3, {}});
  CHECK(seen == std::vector<std::vector<int64_t>>{{1, 2}, {1, 2, 3}, {2, 3, 4}, {3, 4, 5}});
}

TEST_CASE("sampling follows the softmax at its temperature, and its seed") {
  for (double temperature : {0.7, 1.0, 2.0}) {
    std::map<int64_t, int> counts;
    const int draws = 20000;
    auto fixed = [](const Tensor& ids) {
      Tensor logits = at::zeros({1, ids.size(1), 4});
      logits.select(2, 1).fill_(1);
      logits.select(2, 2).fill_(2);
      logits.select(2, 3).fill_(-std::numeric_limits<float>::infinity());
      return logits;
    };
    for (int64_t token : generate::generate_tokens(fixed, {0}, {draws, temperature, 5, 1, {}}))
      ++counts[token];
    double sum = 1 + std::exp(1 / temperature) + std::exp(2 / temperature);
    for (int64_t i = 0; i < 3; ++i)
      CHECK(counts[i] / static_cast<double>(draws) ==
            doctest::Approx(std::exp(static_cast<double>(i) / temperature) / sum).epsilon(0.05));
    CHECK(counts[3] == 0);
  }
  generate::GenerateOptions options{30, 1.0, 5, 10, {}};
  std::vector<int64_t> first = generate::generate_tokens(successor, {3}, options);
  CHECK(generate::generate_tokens(successor, {3}, options) == first);
  options.seed = 6;
  CHECK(generate::generate_tokens(successor, {3}, options) != first);
  options.temperature = 1e-3;
  CHECK(generate::generate_tokens(successor, {3}, options).at(4) == 8);
}

TEST_CASE(
    "only the likeliest tokens are drawn when so many, or so much of the probability, are asked "
    "for") {
  // Probabilities 0.4, 0.1, 0.3, 0.2.
  auto fixed = [](const Tensor& ids) {
    Tensor logits = at::zeros({1, ids.size(1), 4});
    for (auto [token, part] : {std::pair{0, 0.4}, {1, 0.1}, {2, 0.3}, {3, 0.2}})
      logits.select(2, token).fill_(std::log(part));
    return logits;
  };
  struct Case {
    int64_t top_k;
    double top_p;
    std::map<int64_t, double> expected;
  };
  for (const Case& it : {Case{1, 1, {{0, 1}}}, Case{2, 1, {{0, 4. / 7}, {2, 3. / 7}}},
                         Case{3, 1, {{0, 4. / 9}, {2, 3. / 9}, {3, 2. / 9}}},
                         Case{9, 1, {{0, .4}, {1, .1}, {2, .3}, {3, .2}}}, Case{0, 0.39, {{0, 1}}},
                         Case{0, 0.5, {{0, 4. / 7}, {2, 3. / 7}}},
                         Case{0, 0.95, {{0, .4}, {1, .1}, {2, .3}, {3, .2}}},
                         Case{3, 0.7, {{0, 4. / 7}, {2, 3. / 7}}}, Case{2, 1e-9, {{0, 1}}}}) {
    generate::GenerateOptions options{10000, 1, 11, 1, {}};
    options.top_k = it.top_k;
    options.top_p = it.top_p;
    std::map<int64_t, int> counts;
    std::vector<int64_t> heard;
    options.each = [&](int64_t token) { heard.push_back(token); };
    std::vector<int64_t> made = generate::generate_tokens(fixed, {0}, options);
    CHECK(heard == made);
    for (int64_t token : made) ++counts[token];
    CAPTURE(it.top_k);
    CAPTURE(it.top_p);
    CHECK(counts.size() == it.expected.size());
    for (auto [token, part] : it.expected)
      CHECK(counts[token] / 10000. == doctest::Approx(part).epsilon(0.06));
  }
  generate::GenerateOptions options{3, 1, 0, 4, {}};
  options.top_k = -1;
  CHECK_THROWS_AS(generate::generate_tokens(fixed, {0}, options), Error);
  options.top_k = 0;
  for (double wrong : {0., -1., 1.5, std::nan("")}) {
    options.top_p = wrong;
    CHECK_THROWS_AS(generate::generate_tokens(fixed, {0}, options), Error);
  }
}

TEST_CASE("a model continues a prompt beyond its context") {
  modules::CausalLM model = modules::build_model(
      MESHWRIGHT_SOURCE_DIR "/tests/data/nets/mistral_window", DType::float32, at::kCPU);
  modules::initialize(*model, 1);
  auto logits_of = [&](const Tensor& ids) { return model(ids); };
  std::vector<int64_t> text =
      generate::generate_tokens(logits_of, {1, 2, 3}, {70, 1.0, 0, model->max_positions(), {}});
  CHECK(text.size() == 70);
  for (int64_t token : text) CHECK((token >= 0 && token < 61));
}

TEST_CASE("what cannot be generated from is refused") {
  CHECK(code_of({1}, 1, 4) == "ok");
  CHECK(code_of({}, 1, 4) == "E0204");
  CHECK(code_of({1}, -1, 4) == "E0204");
  CHECK(code_of({1}, std::nan(""), 4) == "E0204");
  CHECK(code_of({1}, 1, 0) == "E0204");
  CHECK(code_of({1}, 0, 4, std::nanf("")) == "E0801");
  CHECK(code_of({1}, 1, 4, std::numeric_limits<float>::infinity()) == "E0801");
}

}  // namespace sample_test
