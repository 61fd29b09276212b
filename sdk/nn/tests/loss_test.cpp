// Cross entropy over a cut vocabulary: losses and gradients against at::cross_entropy_loss in
// float64, what is sent, what is kept.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/nn/loss.h"
#include "meshwright/parallel/testing.h"
#include "meshwright/tp_plan.h"
#include "sdk/base/target_losses.h"

namespace loss_test {

using namespace meshwright;
using at::Tensor;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Answer {
  Tensor loss, gradient;
};

// In float64, from the very values that the logits hold.
Answer reference(const Tensor& logits, const Tensor& targets, int64_t ignore, double weight) {
  Tensor x = logits.detach().to(at::kDouble).requires_grad_(true);
  Tensor loss =
      at::cross_entropy_loss(x.flatten(0, -2), targets.flatten(), {}, at::Reduction::Sum, ignore);
  (loss * weight).backward();
  return {loss.detach(), x.grad()};
}

Answer ours(const Tensor& logits, const Tensor& targets, const VocabularyShard* shard,
            int64_t ignore, double weight) {
  Tensor x = logits.detach().clone().requires_grad_(true);
  Tensor loss = cross_entropy_sum(x, targets, shard, ignore);
  (loss * weight).backward();
  return {loss.detach(), x.grad()};
}

double largest_difference(const Tensor& a, const Tensor& b) {
  return a.numel() == 0 ? 0 : (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

struct Setting {
  int64_t ranks, vocabulary;
  at::ScalarType type;
  std::vector<int64_t> rows;
};

// What one rank found; checked after all have ended.
struct Found {
  double loss = 0, loss_error = 0, gradient_error = 0;
  bool types = false;
  std::vector<TrafficCounter::Row> sent, sent_backward;
};

}  // namespace

TEST_CASE(
    "a cut vocabulary gives the loss and the gradients of a whole one, and sends three floats a "
    "row") {
  std::vector<Setting> settings;
  for (int64_t ranks : {1, 2, 3, 4})
    for (int64_t vocabulary : {257, 5})
      for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf})
        settings.push_back({ranks, vocabulary, type, {2, 7}});
  settings.push_back({2, 1000, at::kBFloat16, {700}});  // several chunks
  settings.push_back({2, 130, at::kFloat, {1}});
  for (const Setting& s : settings) {
    CAPTURE(s.ranks);
    CAPTURE(s.vocabulary);
    CAPTURE(c10::toString(s.type));
    std::vector<int64_t> shape = s.rows;
    shape.push_back(s.vocabulary);
    Tensor logits = (at::randn(shape) * 4).to(s.type),
           targets = at::randint(s.vocabulary, s.rows, at::kLong);
    targets.flatten()[0] = s.vocabulary - 1;
    const int64_t count = targets.numel(), ignore = -100;
    if (count > 1) targets.flatten()[count / 2] = ignore;
    Answer expected = reference(logits, targets, ignore, 0.25);
    std::vector<Found> found(static_cast<size_t>(s.ranks));
    run_ranks(s.ranks, [&](const std::shared_ptr<World>& world) {
      VocabularyShard shard = VocabularyShard::of(world->everyone(), s.vocabulary);
      int64_t mine = shard.end - shard.begin;
      Tensor x = logits.narrow(-1, shard.begin, mine).clone().requires_grad_(true);
      world->traffic().clear();
      Tensor loss = cross_entropy_sum(x, targets, &shard, ignore);
      Found& f = found[static_cast<size_t>(world->rank())];
      f.sent = world->traffic().rows();
      world->traffic().clear();
      (loss * 0.25).backward();
      f.sent_backward = world->traffic().rows();
      f.loss = loss.item<double>();
      f.loss_error = std::abs(f.loss / expected.loss.item<double>() - 1);
      f.gradient_error =
          largest_difference(x.grad(), expected.gradient.narrow(-1, shard.begin, mine));
      f.types = loss.scalar_type() == at::kFloat && loss.dim() == 0 &&
                x.grad().scalar_type() == s.type && x.grad().sizes() == x.sizes();
    });
    // A gradient is at most 0.25 here, so the rounding of its own dtype is at most that much of the
    // dtype's step.
    double rounding = s.type == at::kFloat  ? 1e-6
                      : s.type == at::kHalf ? 0.25 * 0x1p-11
                                            : 0.25 * 0x1p-8;
    for (const Found& f : found) {
      CHECK(f.types);
      CHECK(f.loss_error < 1e-6);
      CHECK(f.gradient_error <= rounding);
      CHECK(f.loss == found[0].loss);
      CHECK(f.sent_backward.empty());
      CHECK(f.sent.size() == (s.ranks == 1 ? 0 : 1));
      for (const TrafficCounter::Row& row : f.sent) {
        CHECK(row.op == "all_reduce");
        CHECK(row.count == 2);
        CHECK(row.bytes ==
              2 * 4 * count * (s.ranks - 1) / s.ranks + 2 * 8 * count * (s.ranks - 1) / s.ranks);
      }
    }
  }
}

TEST_CASE(
    "without a shard it is at::cross_entropy_loss, also for logits that are views and targets that "
    "are all ignored") {
  Tensor logits = at::randn({4, 9, 33}), targets = at::randint(33, {4, 8}, at::kLong);
  Tensor shorter = logits.narrow(1, 0, 8), across = at::randn({33, 8}).t(),
         ids = at::randint(33, {8}, at::kLong);
  for (const auto& [x, t] : {std::pair(shorter, targets), std::pair(across, ids),
                             std::pair(logits.select(1, 0), targets.select(1, 0))}) {
    Tensor leaf = x.detach().requires_grad_(true);
    Tensor loss = cross_entropy_sum(leaf, t);
    loss.backward();
    Answer expected = reference(x, t, -100, 1);
    CHECK(std::abs(loss.item<double>() / expected.loss.item<double>() - 1) < 1e-6);
    CHECK(largest_difference(leaf.grad(), expected.gradient) < 1e-6);
  }
  Answer ignored = ours(shorter, at::full({4, 8}, 7, at::kLong), nullptr, 7, 1);
  CHECK(ignored.loss.item<double>() == 0);
  CHECK(ignored.gradient.eq(0).all().item<bool>());
  Tensor nothing = at::zeros({0, 33}).requires_grad_(true);
  CHECK(cross_entropy_sum(nothing, at::zeros({0}, at::kLong)).item<double>() == 0);
}

TEST_CASE("weights are factors of the targets' losses and gradients, whole or cut, in every type") {
  for (int64_t ranks : {1, 3})
    for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
      CAPTURE(ranks);
      CAPTURE(c10::toString(type));
      const Tensor logits = at::randn({2, 5, 37}).to(type),
                   targets = at::randint(37, {2, 5}, at::kLong), weights = at::rand({2, 5}) * 3;
      targets[0][1] = -100;
      weights[1][2] = 0;
      double loss = 0;
      Tensor gradient = at::zeros({2, 5, 37}, at::kDouble);
      for (int64_t row = 0; row < 2; ++row)
        for (int64_t i = 0; i < 5; ++i) {
          const double weight = weights[row][i].item<double>();
          const Answer one = reference(logits[row][i].unsqueeze(0), targets[row][i].unsqueeze(0),
                                       -100, 0.25 * weight);
          loss += weight * one.loss.item<double>();
          gradient[row][i].copy_(one.gradient.squeeze(0));
        }
      run_ranks(ranks, [&](const std::shared_ptr<World>& world) {
        const VocabularyShard shard = VocabularyShard::of(world->everyone(), 37);
        Tensor x =
            logits.narrow(-1, shard.begin, shard.end - shard.begin).clone().requires_grad_(true);
        const Tensor found = cross_entropy_sum(x, targets, &shard, -100, weights);
        (found * 0.25).backward();
        CHECK(std::abs(found.item<double>() / loss - 1) < 1e-6);
        CHECK(largest_difference(x.grad(),
                                 gradient.narrow(-1, shard.begin, shard.end - shard.begin)) <=
              (type == at::kBFloat16 ? 0x1p-8 : 1e-6));
      });
    }
}

TEST_CASE("the gradient is the slope of the loss") {
  Tensor logits = at::randn({3, 11}, at::kDouble), targets = at::randint(11, {3}, at::kLong);
  for (bool ignore_first : {false, true}) {
    if (ignore_first) targets[0] = -100;
    Answer found = ours(logits, targets, nullptr, -100, 1);
    CHECK((found.loss.scalar_type() == at::kDouble));
    const double step = 1e-6;
    for (int64_t r = 0; r < 3; ++r)
      for (int64_t c = 0; c < 11; ++c) {
        auto loss_at = [&](double change) {
          Tensor moved = logits.clone();
          moved[r][c] += change;
          return cross_entropy_sum(moved, targets).item<double>();
        };
        double slope = (loss_at(step) - loss_at(-step)) / (2 * step);
        CHECK(std::abs(slope - found.gradient[r][c].item<double>()) < 1e-8);
      }
  }
}

TEST_CASE("huge logits, infinities and NaN do as in at::cross_entropy_loss") {
  struct Row {
    std::string name;
    std::vector<std::pair<int64_t, double>> values;  // in one row of six
    int64_t target;
  };
  const std::vector<Row> rows = {
      {"all huge", {{0, 1e4}, {1, 1e4}, {2, 9990}, {3, -1e4}, {4, 1e4}, {5, 9999}}, 2},
      {"all very negative",
       {{0, -1e4}, {1, -1e4}, {2, -9990}, {3, -1e4}, {4, -9999}, {5, -1e4}},
       4},
      {"one far above", {{1, 1e4}}, 1},
      {"the target far below", {{1, -1e4}}, 1},
      {"minus infinity elsewhere", {{2, -kInfinity}, {5, -kInfinity}}, 0},
      {"minus infinity at the target", {{3, -kInfinity}}, 3},
      {"minus infinity everywhere",
       {{0, -kInfinity},
        {1, -kInfinity},
        {2, -kInfinity},
        {3, -kInfinity},
        {4, -kInfinity},
        {5, -kInfinity}},
       1},
      {"infinity", {{4, kInfinity}}, 4},
      {"NaN", {{1, kNaN}}, 5},
      {"NaN everywhere", {{0, kNaN}, {1, kNaN}, {2, kNaN}, {3, kNaN}, {4, kNaN}, {5, kNaN}}, 5},
      {"infinity and NaN", {{0, kInfinity}, {5, -kNaN}}, 2}};
  for (const Row& row : rows)
    for (int64_t ranks : {1, 2, 4})
      for (at::ScalarType type : {at::kFloat, at::kHalf}) {
        CAPTURE(row.name);
        CAPTURE(ranks);
        CAPTURE(c10::toString(type));
        Tensor logits = at::arange(6, at::kFloat).view({1, 6}) * 0.5;
        for (const auto& [column, value] : row.values) logits[0][column] = value;
        logits = logits.to(type);
        Tensor target = at::full({1}, row.target, at::kLong);
        Answer expected = reference(logits, target, -100, 1);
        std::vector<Answer> found(static_cast<size_t>(ranks));
        run_ranks(ranks, [&](const std::shared_ptr<World>& world) {
          VocabularyShard shard = VocabularyShard::of(world->everyone(), 6);
          found[static_cast<size_t>(world->rank())] =
              ours(logits.narrow(1, shard.begin, shard.end - shard.begin), target, &shard, -100, 1);
        });
        for (size_t r = 0; r < found.size(); ++r) {
          CHECK(at::allclose(found[r].loss.to(at::kDouble), expected.loss, 1e-6, 1e-6,
                             /*equal_nan=*/true));
          Chunk chunk = ceil_chunk(6, ranks, static_cast<int64_t>(r));
          CHECK(at::allclose(found[r].gradient.to(at::kDouble),
                             expected.gradient.narrow(1, chunk.begin, chunk.end - chunk.begin),
                             1e-6, type == at::kHalf ? 0x1p-11 : 1e-6, /*equal_nan=*/true));
        }
      }
}

namespace {

// The most bytes of tensors alive at once since it was made, above those alive then.
struct Peak : c10::MemoryReportingInfoBase {
  int64_t now = 0, most = 0;
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    most = std::max(most, now += size);
  }
  bool memoryProfilingEnabled() const override { return true; }
};

template <class Body>
int64_t peak_of(Body&& body) {
  auto peak = std::make_shared<Peak>();
  c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, peak);
  body();
  return peak->most;
}

}  // namespace

TEST_CASE("no copy of the logits in float32 is made") {
  constexpr int64_t kRows = 512, kVocabulary = 4096, kElements = kRows * kVocabulary;
  Tensor targets = at::randint(kVocabulary, {kRows}, at::kLong);
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    CAPTURE(c10::toString(type));
    Tensor x = at::randn({kRows, kVocabulary}).to(type).requires_grad_(true), loss;
    int64_t element = static_cast<int64_t>(x.element_size()), few = kElements * 4 / 8;
    CHECK(peak_of([&] { at::cross_entropy_loss(x, targets, {}, at::Reduction::Sum); }) >=
          kElements * element);  // the measure sees copies
    CHECK(peak_of([&] { loss = cross_entropy_sum(x, targets); }) < few);
    int64_t backward = peak_of([&] { loss.backward(); });
    CHECK(backward >= kElements * element);  // the gradient itself
    CHECK(backward < kElements * element + few);
  }
}

TEST_CASE("the losses of single targets are kept where somebody asks, cut over ranks or not") {
  run_ranks(2, [&](const std::shared_ptr<World>& world) {
    const VocabularyShard shard = VocabularyShard::of(world->everyone(), 9);
    const Tensor logits = at::arange(4 * 9).sin().reshape({2, 2, 9});
    const Tensor mine = logits.narrow(2, shard.begin, shard.end - shard.begin);
    Tensor targets = at::arange(4).reshape({2, 2});
    targets[1][0] = -100;
    const Tensor weights = at::arange(4).to(at::kFloat).reshape({2, 2});
    CHECK(meshwright::detail::TargetLosses::kept() == nullptr);
    Tensor whole, cut;
    {
      const meshwright::detail::TargetLosses kept;
      const Tensor sum = cross_entropy_sum(logits, targets, nullptr, -100, weights);
      whole = kept.of(sum);
      CHECK_FALSE(kept.of(sum * 1).defined());
    }
    {
      const meshwright::detail::TargetLosses kept;
      cut = kept.of(cross_entropy_sum(mine, targets, &shard, -100, weights));
    }
    CHECK(meshwright::detail::TargetLosses::kept() == nullptr);
    REQUIRE(whole.defined());
    REQUIRE(cut.defined());
    CHECK(largest_difference(whole, cut) < 1e-6);
    for (int64_t i = 0; i < 4; ++i)
      CHECK(whole[i].item<double>() ==
            doctest::Approx(i == 2 ? 0
                                   : static_cast<double>(i) *
                                         cross_entropy_sum(logits[i / 2][i % 2].unsqueeze(0),
                                                           targets[i / 2][i % 2].unsqueeze(0))
                                             .item<double>()));
  });
}

TEST_CASE("what cannot be is refused on every rank before anything is sent") {
  auto code_of = [](auto&& call) -> std::optional<ErrorCode> {
    try {
      call();
    } catch (const Error& error) {
      return error.code();
    }
    return std::nullopt;
  };
  Tensor logits = at::randn({3, 5});
  for (int64_t bad : {int64_t{5}, int64_t{-1}, int64_t{-100}, int64_t{1} << 40}) {
    CAPTURE(bad);
    Tensor targets = at::zeros({3}, at::kLong);
    targets[1] = bad;
    CHECK(code_of([&] { cross_entropy_sum(logits, targets, nullptr, -7); }) ==
          ErrorCode::bad_token);
  }
  std::mutex mutex;
  int64_t refused = 0, bytes = 0;
  run_ranks(2, [&](const std::shared_ptr<World>& world) {
    VocabularyShard shard = VocabularyShard::of(world->everyone(), 9);
    Tensor mine = at::zeros({2, shard.end - shard.begin}), targets = at::full({2}, 9, at::kLong);
    std::optional<ErrorCode> code = code_of([&] { cross_entropy_sum(mine, targets, &shard); });
    std::lock_guard lock(mutex);
    refused += code == ErrorCode::bad_token ? 1 : 0;
    bytes += world->traffic().bytes();
  });
  CHECK(refused == 2);
  CHECK(bytes == 0);
  auto misfit = [&](const Tensor& x, const Tensor& t, const VocabularyShard* shard = nullptr) {
    return code_of([&] { cross_entropy_sum(x, t, shard); }) == ErrorCode::model_does_not_fit;
  };
  CHECK(misfit(logits, at::zeros({4}, at::kLong)));
  CHECK(misfit(logits, at::zeros({3, 1}, at::kLong)));
  CHECK(misfit(logits, at::zeros({3}, at::kInt)));
  CHECK(misfit(at::zeros({3, 5}, at::kLong), at::zeros({3}, at::kLong)));
  CHECK(misfit(at::zeros({}), at::zeros({}, at::kLong)));
  VocabularyShard shard{nullptr, 4, 8, 9};
  CHECK(misfit(logits, at::zeros({3}, at::kLong), &shard));
  for (const Tensor& weights :
       {at::ones({2}), at::ones({3}, at::kDouble), at::ones({3}).requires_grad_(true)})
    CHECK(code_of([&] {
            cross_entropy_sum(logits, at::zeros({3}, at::kLong), nullptr, -100, weights);
          }) == ErrorCode::model_does_not_fit);
}

}  // namespace loss_test
