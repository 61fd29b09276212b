// Which rank holds up the others, and when that is said.
#include "engine/train/run/speed.h"

#include <doctest/doctest.h>

namespace slow_rank_test {

using namespace meshwright::train;

namespace {

const std::vector<std::string> kHosts = {"node6", "node6", "node7", "node7"};
const std::vector<int64_t> kAlike = {0, 0, 0, 0};

// What is said over so many steps, each with its number from 1.
std::vector<std::string> said(SlowRanks& ranks, int64_t steps, const std::vector<double>& work) {
  std::vector<std::string> out;
  for (int64_t step = 1; step <= steps; ++step)
    if (std::string text = ranks.add(work); !text.empty())
      out.push_back(std::to_string(step) + ": " + text);
  return out;
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE(
    "the slowest rank is measured by the median of the others, also where there is one other") {
  const Slowest one = slowest_of({100, 110, 150, 104});
  CHECK(one.rank == 2);
  CHECK(one.above_ms == 46);
  CHECK(one.median_ms == 104);
  CHECK(slowest_of({30, 20}).above_ms == 10);
  CHECK(slowest_of({30, 30}).above_ms == 0);
  CHECK(slowest_of({30}).rank == -1);
  CHECK(slowest_of({}).rank == -1);
}

TEST_CASE(
    "a rank that is slow for many steps is named with its host, once, after ten times as many "
    "again, and when it is over") {
  SlowRanks ranks(kHosts, kAlike);
  CHECK(said(ranks, 5, {200, 200, 200, 210}).empty());
  CHECK(said(ranks, 19, {200, 200, 200, 262}).empty());
  CHECK(
      said(ranks, 190, {200, 200, 200, 262}) ==
      Lines{"1: warning: rank 3 on host node7 has needed 31% longer than the median of the others "
            "for 20 steps: they wait for it",
            "181: warning: rank 3 on host node7 has needed 31% longer than the median of the "
            "others for 200 steps: they wait for it"});
  CHECK(
      said(ranks, 30, {200, 200, 200, 200}) ==
      Lines{
          "5: notice: rank 3 on host node7 is no longer slower than the others, after 209 steps"});
}

TEST_CASE("a step in which another rank was held up makes nobody forget the one that is slow") {
  SlowRanks ranks(kHosts, kAlike);
  const std::vector<double> slow = {200, 200, 200, 300}, other = {400, 200, 200, 300},
                            even = {200, 200, 200, 200};
  CHECK(said(ranks, 19, slow).empty());
  CHECK(said(ranks, 1, even).empty());
  CHECK(said(ranks, 2, other).empty());
  CHECK(said(ranks, 6, slow) ==
        Lines{"1: warning: rank 3 on host node7 has needed 50% longer than the median of the "
              "others for 20 steps: they wait for it"});
  // It goes on, held up by others now and then, and is not told of as if it had ended.
  for (int i = 0; i < 20; ++i) {
    CHECK(said(ranks, 4, slow).empty());
    CHECK(said(ranks, 1, other).empty());
  }
}

TEST_CASE("what comes and goes, changes the rank, is small, or lasts a moment is not said") {
  SlowRanks ranks(kHosts, kAlike);
  for (int i = 0; i < 10; ++i) {
    CHECK(said(ranks, 15, {200, 200, 200, 300}).empty());
    CHECK(said(ranks, 1, {200, 200, 200, 200}).empty());
    CHECK(said(ranks, 15, {300, 200, 200, 200}).empty());
  }
  CHECK(said(ranks, 100, {200, 200, 200, 230}).empty());
  // Twenty steps of a few milliseconds are as long as another program's turn on the core.
  CHECK(said(ranks, 100, {4, 4, 4, 8}).empty());
  CHECK(said(ranks, 400, {4, 4, 4, 8}).size() == 1);
  // A step without times, as the first one.
  SlowRanks one(kHosts, kAlike);
  CHECK(said(one, 30, {}).empty());
  CHECK(said(one, 20, {200, 200, 200, 300}).size() == 1);
}

TEST_CASE(
    "stages of a pipeline have other work each: a rank is slow beside those of its own stage") {
  SlowRanks stages(kHosts, {0, 0, 1, 1});
  CHECK(said(stages, 50, {100, 100, 300, 310}).empty());
  CHECK(
      said(stages, 20, {160, 100, 300, 310}) ==
      Lines{"20: warning: rank 0 on host node6 has needed 60% longer than the median of the others "
            "for 20 steps: they wait for it"});
  SlowRanks alone({"a", "b"}, {0, 1});
  CHECK(said(alone, 50, {100, 900}).empty());
}

}  // namespace slow_rank_test
