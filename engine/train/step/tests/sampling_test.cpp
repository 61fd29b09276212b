// Which tokens are left to draw from, and with what probabilities: as transformers has them.
#include "engine/train/step/sampling.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "meshwright/error.h"

namespace sampling_test {

using namespace meshwright::generate;

namespace {

const std::vector<float> kPlain{1.5F, -0.5F, 2.25F, 0.75F, -2, 3, 0, 1},
    kTied{1, 2, 2, 0.5F, 2, 1, -1, 1};

struct Row {
  const std::vector<float>& logits;
  std::vector<int64_t> text;
  Sampling sampling;
  std::vector<double> expected;
};

}  // namespace

TEST_CASE("penalty, temperature, top-k, top-p and min-p are those of transformers, in its order") {
  // transformers 5.17.0: RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper,
  // TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper on the CPU, and the softmax of what they
  // leave.
  const std::vector<Row> rows{
      {kPlain,
       {0},
       {1, 0, 1, 0, 1},
       {0.110299197, 0.0149273731, 0.233503402, 0.0521016515, 0.00333074715, 0.494326706,
        0.0246110775, 0.0668998448}},
      {kPlain,
       {0},
       {0.7, 0, 1, 0, 1},
       {0.0743115733, 0.00426790851, 0.216956198, 0.0254531159, 0.000500707442, 0.63341371,
        0.00871817241, 0.0363786146}},
      {kPlain, {0}, {1, 3, 1, 0, 1}, {0.131601647, 0, 0.278600689, 0, 0, 0.589797664, 0, 0}},
      {kPlain, {0}, {1, 2, 1, 0, 1}, {0, 0, 0.320821301, 0, 0, 0.679178699, 0, 0}},
      {kPlain,
       {0},
       {1, 5, 1, 0, 1},
       {0.115239419, 0, 0.243961851, 0.0544352469, 0, 0.516467243, 0, 0.0698962406}},
      {kPlain, {0}, {1, 0, 0.5, 0, 1}, {0, 0, 0.320821301, 0, 0, 0.679178699, 0, 0}},
      {kPlain,
       {0},
       {1, 0, 0.9, 0, 1},
       {0.12187364, 0, 0.258006499, 0, 0, 0.546199762, 0, 0.0739200995}},
      {kPlain, {0}, {1, 0, 0.25, 0, 1}, {0, 0, 0, 0, 0, 1, 0, 0}},
      {kPlain, {0}, {1, 0, 0.8, 0, 1}, {0.131601647, 0, 0.278600689, 0, 0, 0.589797664, 0, 0}},
      {kPlain, {0}, {1, 0, 1, 0.2, 1}, {0.131601647, 0, 0.278600689, 0, 0, 0.589797664, 0, 0}},
      {kPlain, {0}, {1, 0, 1, 0.5, 1}, {0, 0, 0, 0, 0, 1, 0, 0}},
      {kPlain, {0}, {1, 0, 1, 1, 1}, {0, 0, 0, 0, 0, 1, 0, 0}},
      {kPlain,
       {5, 2, 2, 1},
       {1, 0, 1, 0, 1.3},
       {0.168038873, 0.0195738671, 0.211656487, 0.0793759433, 0.00507433429, 0.376865225,
        0.0374945407, 0.101920729}},
      {kPlain,
       {5, 2, 2, 1, 4},
       {0.8, 4, 0.9, 0.1, 1.2},
       {0.164248436, 0, 0.262468191, 0, 0, 0.573283373, 0, 0}},
      {kPlain,
       {1, 2, 4, 6},
       {1.5, 6, 0.85, 0.3, 1.1},
       {0.193917474, 0, 0.278960181, 0, 0, 0.527122345, 0, 0}},
      {kPlain, {6, 1}, {0.6, 3, 0.7, 0.05, 0.8}, {0, 0, 0, 0, 0, 1, 0, 0}},
      {kPlain, {0}, {2.0, 1, 1, 0, 1}, {0, 0, 0, 0, 0, 1, 0, 0}},
      {kPlain, {0}, {1, 2, 0.3, 0, 1}, {0, 0, 0, 0, 0, 1, 0, 0}},
      {kTied,
       {0},
       {1, 0, 1, 0, 1},
       {0.0840568426, 0.228490188, 0.228490188, 0.0509830522, 0.228490188, 0.0840568426,
        0.0113758566, 0.0840568426}},
      {kTied,
       {0},
       {0.7, 0, 1, 0, 1},
       {0.0622464378, 0.259737829, 0.259737829, 0.0304722239, 0.259737829, 0.0622464378,
        0.00357497572, 0.0622464378}},
      {kTied, {0}, {1, 3, 1, 0, 1}, {0, 0.333333333, 0.333333333, 0, 0.333333333, 0, 0, 0}},
      {kTied, {0}, {1, 2, 1, 0, 1}, {0, 0.333333333, 0.333333333, 0, 0.333333333, 0, 0, 0}},
      {kTied,
       {0},
       {1, 5, 1, 0, 1},
       {0.0896471405, 0.243686193, 0.243686193, 0, 0.243686193, 0.0896471405, 0, 0.0896471405}},
      {kTied, {0}, {1, 0, 0.5, 0, 1}, {0, 0.333333333, 0.333333333, 0, 0.333333333, 0, 0, 0}},
      {kTied,
       {0},
       {1, 0, 0.9, 0, 1},
       {0.0896471405, 0.243686193, 0.243686193, 0, 0.243686193, 0.0896471405, 0, 0.0896471405}},
      {kTied, {0}, {1, 0, 0.25, 0, 1}, {0, 0, 0.5, 0, 0.5, 0, 0, 0}},
      {kTied,
       {0},
       {1, 0, 0.8, 0, 1},
       {0, 0.267683229, 0.267683229, 0, 0.267683229, 0.0984751567, 0, 0.0984751567}},
      {kTied,
       {0},
       {1, 0, 1, 0.2, 1},
       {0.0850240642, 0.231119369, 0.231119369, 0.0515697017, 0.231119369, 0.0850240642, 0,
        0.0850240642}},
      {kTied, {0}, {1, 0, 1, 0.5, 1}, {0, 0.333333333, 0.333333333, 0, 0.333333333, 0, 0, 0}},
      {kTied, {0}, {1, 0, 1, 1, 1}, {0, 0.333333333, 0.333333333, 0, 0.333333333, 0, 0, 0}},
      {kTied,
       {5, 2, 2, 1},
       {1, 0, 1, 0, 1.3},
       {0.10329716, 0.176986144, 0.176986144, 0.0626528944, 0.280790792, 0.0820099566, 0.0139797504,
        0.10329716}},
      {kTied,
       {5, 2, 2, 1, 4},
       {0.8, 4, 0.9, 0.1, 1.2},
       {0.112322609, 0.258451594, 0.258451594, 0, 0.258451594, 0, 0, 0.112322609}},
      {kTied,
       {1, 2, 4, 6},
       {1.5, 6, 0.85, 0.3, 1.1},
       {0, 0.240433356, 0.240433356, 0, 0.240433356, 0.139349965, 0, 0.139349965}},
      {kTied, {6, 1}, {0.6, 3, 0.7, 0.05, 0.8}, {0, 0.697059267, 0, 0, 0.302940733, 0, 0, 0}},
      {kTied, {0}, {2.0, 1, 1, 0, 1}, {0, 0.333333333, 0.333333333, 0, 0.333333333, 0, 0, 0}},
      {kTied, {0}, {1, 2, 0.3, 0, 1}, {0, 0, 0, 0, 1, 0, 0, 0}},
  };
  for (const Row& row : rows) {
    std::vector<float> logits = row.logits;
    penalize(logits, row.text, row.sampling.repetition_penalty);
    const Weights weights = weigh(logits, row.sampling);
    CAPTURE(&row - rows.data());
    REQUIRE(weights.of.size() == row.expected.size());
    double sum = 0;
    for (size_t i = 0; i < weights.of.size(); ++i) {
      sum += weights.of[i];
      CHECK((weights.of[i] == 0) == (row.expected[i] == 0));
      CHECK(weights.of[i] / weights.sum == doctest::Approx(row.expected[i]).epsilon(1e-6));
    }
    CHECK(sum == doctest::Approx(weights.sum).epsilon(1e-12));
  }
}

TEST_CASE("a draw falls where its number lies among the weights, and on no token without one") {
  const Weights weights{{0, 0.5, 0, 0.25, 0.25, 0}, 1};
  for (auto [uniform, token] :
       {std::pair{0.0, 1}, {0.499, 1}, {0.5, 3}, {0.749, 3}, {0.75, 4}, {0.9999, 4}})
    CHECK(draw(weights, uniform) == token);
}

TEST_CASE("log-probabilities are of the softmax of all logits, however far apart they are") {
  double sum = 0;
  for (int64_t i = 0; i < 8; ++i) sum += std::exp(log_probability(kPlain, i));
  CHECK(sum == doctest::Approx(1).epsilon(1e-12));
  const float minus = -std::numeric_limits<float>::infinity();
  const std::vector<float> apart{-2000, 3000, 3000, minus};
  CHECK(log_probability(apart, 1) == doctest::Approx(-std::log(2.0)).epsilon(1e-12));
  CHECK(log_probability(apart, 0) == doctest::Approx(-5000 - std::log(2.0)).epsilon(1e-12));
  CHECK(std::isinf(log_probability(apart, 3)));
}

TEST_CASE("what makes no sense is refused by name") {
  auto refused = [](const Sampling& sampling) -> std::string {
    try {
      check_sampling(sampling);
    } catch (const meshwright::Error& error) {
      return error.message();
    }
    return "";
  };
  const double none = std::nan("");
  CHECK(refused({1, 5, 0.5, 0.1, 1.1}).empty());
  CHECK(refused({0, 0, 1, 1, 0.1}).empty());
  CHECK(refused({-1}).find("temperature") != std::string::npos);
  CHECK(refused({1, -1}).find("top_k") != std::string::npos);
  CHECK(refused({1, 0, 0}).find("top_p") != std::string::npos);
  for (double wrong : {-0.1, 1.1, none})
    CHECK(refused({1, 0, 1, wrong}).find("min_p") != std::string::npos);
  for (double wrong : {0.0, -1.0, none, std::numeric_limits<double>::infinity()})
    CHECK(refused({1, 0, 1, 0, wrong}).find("repetition penalty") != std::string::npos);
}

}  // namespace sampling_test
