// What is usual in a run, and what a step that is not does to it.
#include "engine/train/step/step_monitor.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace step_monitor_test {

using namespace meshwright;
using namespace meshwright::train;

namespace {

StepResult result_of(double loss, double norm) {
  StepResult out;
  out.loss = loss;
  out.grad_norm = norm;
  return out;
}

// 2.0, 2.1, ... 2.9, again and again.
double usual(int64_t step) { return 2 + 0.1 * static_cast<double>(step % 10); }

void fill(StepMonitor& monitor, World& world, int64_t steps) {
  for (int64_t step = 0; step < steps; ++step)
    REQUIRE(!monitor.judge(result_of(usual(step), 1), world));
}

}  // namespace

TEST_CASE(
    "a score is in standard deviations of a normal distribution, and a spike among the values does "
    "not change it") {
  std::vector<double> values;
  // Quantiles of the normal distribution of mean 5 and deviation 0.5.
  for (double z :
       {-2.054, -1.405, -1.080, -0.842, -0.643, -0.468, -0.305, -0.151, 0.0,    0.151, 0.305,
        0.468,  0.643,  0.842,  1.080,  1.405,  2.054,  -1.036, 1.036,  -0.253, 0.253})
    values.push_back(5 + 0.5 * z);
  CHECK(z_score(values, 7) == doctest::Approx(4).epsilon(0.06));
  CHECK(z_score(values, 4) == doctest::Approx(-2).epsilon(0.06));
  CHECK(std::abs(z_score(values, 5)) < 0.01);
  const double before = z_score(values, 8);
  values.push_back(1000);  // of these, mean and deviation would be 52 and 217
  CHECK(z_score(values, 8) == doctest::Approx(before).epsilon(0.15));
}

TEST_CASE(
    "there is no score of few values, nor of one that is not finite; a curve that stands still "
    "makes no news of its last digit") {
  std::vector<double> values(kFewest - 1, 3.0);
  CHECK(std::isnan(z_score(values, 30)));
  values.push_back(3.0);
  CHECK(z_score(values, 3.00003) == doctest::Approx(0.001));
  CHECK(z_score(values, 3.3) == doctest::Approx(10));
  for (double bad : {std::nan(""), std::numeric_limits<double>::infinity()})
    CHECK(std::isnan(z_score(values, bad)));
  CHECK(std::isnan(z_score(std::vector<double>(30, 0.0), 0)));
  CHECK(median_of({3, 1, 2}) == 2);
  CHECK(median_of({4, 1, 2, 3}) == 2.5);
}

TEST_CASE("scores are there without the option, and nothing is left out") {
  auto world = World::single();
  StepMonitor monitor(std::nullopt, *world);
  fill(monitor, *world, 30);
  CHECK(!monitor.judge(result_of(50, 9), *world));
  CHECK(monitor.facts().loss_z > 50);
  CHECK(monitor.facts().grad_norm_z > 50);
  CHECK(!monitor.facts().skipped);
  CHECK(monitor.history().losses.back() == 50);  // the next ones are judged beside it
  CHECK(monitor.updates(31) == 31);
  fill(monitor, *world, 100);
  CHECK(monitor.history().losses.size() == kWindow);
  CHECK(monitor.history().losses.front() == usual(0));
}

TEST_CASE(
    "what lies too far above is left out, says why, and hides no other; what lies below is "
    "welcome") {
  auto world = World::single();
  StepMonitor monitor(6.0, *world);
  CHECK(!monitor.judge(result_of(900, 900), *world));  // nothing is known yet
  fill(monitor, *world, 40);
  CHECK(monitor.judge(result_of(50, 1), *world));
  CHECK(monitor.facts().why.find("the loss 50 is ") == 0);
  CHECK(monitor.facts().why.find(" standard deviations above 2.") != std::string::npos);
  CHECK(monitor.facts().why.find(", the median of the last 41 steps") != std::string::npos);
  CHECK(monitor.judge(result_of(2.5, 7), *world));
  CHECK(monitor.facts().why.find("the gradient norm 7 is ") == 0);
  CHECK(monitor.facts().why.find(", the median of the last 42 steps") != std::string::npos);
  CHECK(monitor.updates(43) == 41);
  CHECK(!monitor.judge(result_of(-50, 0.1), *world));
  CHECK(monitor.facts().loss_z < -50);
}

TEST_CASE(
    "where run.stop_on_nonfinite lets it live, a step that is not finite is left out from the "
    "first one on") {
  auto world = World::single();
  StepMonitor monitor(6.0, *world);
  CHECK(monitor.judge(result_of(std::nan(""), 1), *world));
  CHECK(monitor.facts().why == "the loss is nan");
  CHECK(monitor.judge(result_of(2, std::numeric_limits<double>::infinity()), *world));
  CHECK(monitor.facts().why == "the gradient norm is infinite");
  CHECK(monitor.history().losses == std::vector<double>{2});  // what is none is not kept
  CHECK(monitor.history().grad_norms == std::vector<double>{1});
  StepMonitor without(std::nullopt, *world);
  CHECK(!without.judge(result_of(std::nan(""), 1), *world));
}

TEST_CASE("where a curve grows uneven its steps are left out for a while alone") {
  auto world = World::single();
  StepMonitor monitor(6.0, *world);
  // Flat; then every second value is a tenth higher, which never makes ten in a row.
  for (int64_t step = 0; step < 100; ++step)
    REQUIRE(!monitor.judge(result_of(2, usual(step) / 500 + 1), *world));
  int64_t first = 0, later = 0;
  for (int64_t step = 0; step < 200; ++step)
    (step < 100 ? first : later) += monitor.judge(result_of(2, step % 2 == 0 ? 1 : 1.1), *world);
  CHECK(first > 10);
  CHECK(later == 0);
}

TEST_CASE("a run whose losses have moved for good is not left out for ever") {
  auto world = World::single();
  StepMonitor monitor(6.0, *world);
  fill(monitor, *world, 40);
  for (int64_t i = 0; i < StepMonitor::kMostInARow; ++i) {
    CHECK(monitor.judge(result_of(50, 1), *world));
    CHECK(monitor.facts().starts_anew == (i + 1 == StepMonitor::kMostInARow));
  }
  for (int64_t i = 0; i < 30; ++i) CHECK(!monitor.judge(result_of(50 + usual(i), 1), *world));
  CHECK(monitor.judge(result_of(100, 1), *world));
  CHECK(monitor.updates(81) == 70);
  // Steps that are taken in between end the row.
  StepMonitor other(6.0, *world);
  fill(other, *world, 40);
  for (int64_t i = 0; i < 3 * StepMonitor::kMostInARow; ++i) {
    CHECK(other.judge(result_of(50, 1), *world));
    CHECK(!other.judge(result_of(2.5, 1), *world));
  }
}

TEST_CASE("a loss scale that adapts halves where gradients overflow, and grows where none do") {
  const double inf = std::numeric_limits<double>::infinity();
  const auto world = World::single();
  StepMonitor monitor(std::nullopt, *world);
  CHECK(monitor.loss_scale() == 1);
  CHECK_FALSE(monitor.overflowed(result_of(2, inf)));
  monitor.scale_losses({4, /*dynamic=*/true});
  CHECK(monitor.judge(result_of(2, inf), *world));
  CHECK(monitor.facts().overflowed);
  CHECK(monitor.facts().why == "float16 gradients overflowed; the loss scale is 2 now");
  CHECK(monitor.loss_scale() == 2);
  CHECK_FALSE(monitor.overflowed(result_of(inf, inf)));  // a smaller scale would not help
  for (int64_t step = 1; step < StepMonitor::kStepsToGrow; ++step)
    CHECK_FALSE(monitor.judge(result_of(2, 1), *world));
  CHECK(monitor.loss_scale() == 2);
  const checkpoint::StepHistory kept = monitor.history();
  monitor.judge(result_of(2, 1), *world);
  CHECK(monitor.loss_scale() == 4);
  // A run that goes on from there.
  StepMonitor next(std::nullopt, *world);
  next.scale_losses({65536, /*dynamic=*/true});
  next.restore(kept);
  CHECK(next.loss_scale() == 2);
  next.judge(result_of(2, 1), *world);
  CHECK(next.loss_scale() == 4);
  next.restore({});  // of a checkpoint of before
  CHECK(next.loss_scale() == 65536);
  for (int left = 0; left < 17; ++left) next.judge(result_of(2, inf), *world);
  CHECK(next.loss_scale() == 1);
  CHECK_FALSE(next.overflowed(result_of(2, inf)));  // it is no overflow then
}

}  // namespace step_monitor_test
