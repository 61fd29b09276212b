// Which rank the others wait for, and whether it is always the same one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace meshwright::train {

// The rank that worked longest, and by how much that is longer than the median of the others.
struct Slowest {
  int64_t rank = -1;     // -1: not known
  double above_ms = 0;   // never below 0
  double median_ms = 0;  // of the others
};
Slowest slowest_of(const std::vector<double>& work_ms);

// Watches one rank's run for ranks that are slow for long. Not thread-safe.
class SlowRanks {
 public:
  static constexpr double kShare = 0.2;         // of the median, above it
  static constexpr int64_t kSteps = 20;         // in which it was the one
  static constexpr int64_t kForgiven = 4;       // such steps make up for one in which it was not
  static constexpr double kMilliseconds = 2e3;  // that they take: short ones are noise
  // `hosts`: by rank. `peers`: ranks are compared with those of the same number, as stages of a
  // pipeline do other work each.
  SlowRanks(std::vector<std::string> hosts, std::vector<int64_t> peers)
      : hosts_(std::move(hosts)), peers_(std::move(peers)) {}
  SlowRanks() = default;
  // Of one step. What there is to say, most often nothing: that a rank is slow, again after ten
  // times as many steps, and that it is so no longer.
  std::string add(const std::vector<double>& work_ms);

 private:
  struct Lag {
    int64_t rank = -1;
    double share = 0, median_ms = 0;
  };
  Lag lag_of(const std::vector<double>& work_ms) const;
  std::string called(int64_t rank) const;
  std::vector<std::string> hosts_;
  std::vector<int64_t> peers_;
  void watch(const Lag& lag);
  int64_t rank_ = -1, steps_ = 0, say_at_ = kSteps;
  int64_t credit_ = 0;                    // once it is used up, the rank is as the others
  double shares_ = 0, milliseconds_ = 0;  // sums over these steps
  bool said_ = false;
};

}  // namespace meshwright::train
