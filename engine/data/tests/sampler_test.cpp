// The order in which samples are read.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <vector>

#include "engine/data/dataset.h"

using namespace meshwright;
using namespace meshwright::data;

TEST_CASE("the order of samples") {
  Sampler plain(10, false, 1);
  for (int64_t i = 0; i < 25; ++i) CHECK(plain.at(i) == i % 10);
  for (int64_t samples : {1, 2, 3, 10, 64, 1000}) {
    Sampler shuffled(samples, true, 42);
    std::vector<std::vector<int64_t>> epochs;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<int64_t> seen;
      epochs.emplace_back();
      for (int64_t i = 0; i < samples; ++i) {
        int64_t at = shuffled.at(epoch * samples + i);
        CHECK(at >= 0);
        CHECK(at < samples);
        seen.insert(at);
        epochs.back().push_back(at);
      }
      CHECK(seen.size() == static_cast<size_t>(samples));
    }
    if (samples < 10) continue;
    CHECK(epochs[0] != epochs[1]);
    CHECK(Sampler(samples, true, 42).at(5) == shuffled.at(5));
    std::vector<int64_t> other;
    for (int64_t i = 0; i < samples; ++i) other.push_back(Sampler(samples, true, 43).at(i));
    CHECK(other != epochs[0]);
  }
}

TEST_CASE("every permutation of few samples comes up, about equally often") {
  std::map<std::vector<int64_t>, int> seen;
  Sampler sampler(4, true, 9);
  constexpr int kEpochs = 24000;
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < 4; ++i) order.push_back(sampler.at(epoch * 4 + i));
    ++seen[order];
  }
  CHECK(seen.size() == 24);
  for (const auto& [order, count] : seen) {
    CAPTURE(count);  // 1000 expected, standard deviation 31
    CHECK(count > 840);
    CHECK(count < 1160);
  }
}

TEST_CASE("a step reads the same samples however it is split over ranks and micro-batches") {
  constexpr int64_t kBatch = 24,
                    kSteps = 12;  // 288 positions over 100 samples: almost three epochs
  for (bool shuffle : {false, true}) {
    Sampler sampler(100, shuffle, 5);
    std::vector<std::set<int64_t>> reference;
    for (auto [dp, accum, micro_batch] : std::vector<std::array<int64_t, 3>>{
             {1, 1, 24}, {2, 1, 12}, {2, 3, 4}, {3, 4, 2}, {4, 6, 1}, {24, 1, 1}}) {
      CAPTURE(dp);
      std::vector<std::set<int64_t>> steps;
      for (int64_t s = 0; s < kSteps; ++s) {
        std::vector<int64_t> read;
        for (int64_t r = 0; r < dp; ++r)
          for (int64_t a = 0; a < accum; ++a)
            for (int64_t b = 0; b < micro_batch; ++b)
              read.push_back(sampler.at(((s * accum + a) * dp + r) * micro_batch + b));
        REQUIRE(read.size() == kBatch);
        steps.emplace_back(read.begin(), read.end());
        if (!shuffle)
          for (int64_t i = 0; i < kBatch; ++i) CHECK(steps.back().contains((s * kBatch + i) % 100));
      }
      if (reference.empty()) reference = steps;
      CHECK(steps == reference);
    }
  }
}

TEST_CASE("the order at far positions and of many samples needs no memory and stays in range") {
  Sampler sampler(int64_t{1} << 40, true, 3);
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 1000; ++i) {
    int64_t at = sampler.at((int64_t{1} << 61) + i);
    CHECK(at >= 0);
    CHECK(at < int64_t{1} << 40);
    seen.insert(at);
  }
  CHECK(seen.size() == 1000);
  CHECK_THROWS_AS(Sampler(0, true, 1), Error);
  CHECK_THROWS_AS(sampler.at(-1), Error);
}
