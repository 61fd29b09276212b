// The learning rate of every step.
#pragma once

#include <cstdint>
#include <string>

#include "meshwright/options.h"

namespace meshwright::train {

// Step s counts from 0. Warm-up: lr * (s + 1) / warmup. After it the style's decay, which reaches
// min_lr at the last step, where that comes after the warm-up; wsd keeps lr until the last tenth of
// all steps and then falls linearly. constant ignores min_lr.
class Schedule {
 public:
  Schedule(const Options& optimizer, const Options& scheduler, int64_t max_steps);
  double at(int64_t step) const;

 private:
  enum class Style : uint8_t { constant, linear, cosine, wsd };
  Style style_;
  double lr_, min_lr_;
  int64_t warmup_, max_steps_;
};

}  // namespace meshwright::train
