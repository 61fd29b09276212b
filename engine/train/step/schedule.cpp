#include "engine/train/step/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace meshwright::train {

Schedule::Schedule(const Options& optimizer, const Options& scheduler, int64_t max_steps)
    : style_(Style::constant),
      lr_(optimizer.get_number("lr")),
      min_lr_(scheduler.get_number("min_lr")),  // never above lr: the configuration refuses that
      warmup_(scheduler.get_int("lr_warmup_steps")),
      max_steps_(max_steps) {
  std::string style = scheduler.get_string("lr_decay_style");
  if (style == "linear") style_ = Style::linear;
  if (style == "cosine") style_ = Style::cosine;
  if (style == "wsd") style_ = Style::wsd;
}

double Schedule::at(int64_t step) const {
  if (step < warmup_) return lr_ * static_cast<double>(step + 1) / static_cast<double>(warmup_);
  int64_t begin = warmup_, last = max_steps_ - 1;
  if (style_ == Style::wsd)
    begin = std::max(begin, max_steps_ - std::max<int64_t>(max_steps_ / 10, 1) - 1);
  if (style_ == Style::constant || step <= begin || last <= begin)
    // A warm-up that ends right before the last step leaves it min_lr; a step alone has lr.
    return style_ != Style::constant && step >= last && (last > begin || warmup_ > 0) ? min_lr_
                                                                                      : lr_;
  double progress =
      std::min(1.0, static_cast<double>(step - begin) / static_cast<double>(last - begin));
  double share =
      style_ == Style::cosine ? 0.5 * (1 + std::cos(std::numbers::pi * progress)) : 1 - progress;
  return min_lr_ + (lr_ - min_lr_) * share;
}

}  // namespace meshwright::train
