#include "engine/train/run/slow_rank.h"

#include <algorithm>

#include "engine/train/step/step_monitor.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::train {

Slowest slowest_of(const std::vector<double>& work_ms) {
  if (work_ms.size() < 2) return {};
  std::vector<double> others = work_ms;
  const auto most = std::max_element(others.begin(), others.end());
  Slowest out{most - others.begin(), *most, 0};
  others.erase(most);
  out.median_ms = median_of(std::move(others));
  out.above_ms -= out.median_ms;
  return out;
}

// Among all groups of peers, the rank that is furthest behind its own.
SlowRanks::Lag SlowRanks::lag_of(const std::vector<double>& work_ms) const {
  Lag out;
  const int64_t groups = peers_.empty() ? 0 : *std::max_element(peers_.begin(), peers_.end()) + 1;
  for (int64_t group = 0; group < groups; ++group) {
    std::vector<double> of_group;
    std::vector<int64_t> ranks;
    for (size_t rank = 0; rank < work_ms.size(); ++rank)
      if (peers_[rank] == group) {
        of_group.push_back(work_ms[rank]);
        ranks.push_back(static_cast<int64_t>(rank));
      }
    const Slowest slowest = slowest_of(of_group);
    if (slowest.rank < 0 || slowest.median_ms <= 0) continue;
    const double share = slowest.above_ms / slowest.median_ms;
    if (share > std::max(kShare, out.share))
      out = {ranks[static_cast<size_t>(slowest.rank)], share, slowest.median_ms};
  }
  return out;
}

std::string SlowRanks::called(int64_t rank) const {
  return "rank " + std::to_string(rank) + " on host " + hosts_[static_cast<size_t>(rank)];
}

std::string SlowRanks::add(const std::vector<double>& work_ms) {
  if (work_ms.size() != peers_.size() || work_ms.empty()) return {};
  const Lag lag = lag_of(work_ms);
  if (lag.rank == rank_ && rank_ >= 0) {
    ++steps_;
    credit_ = std::min(credit_ + 1, kSteps);
    shares_ += lag.share;
    milliseconds_ += lag.median_ms * (1 + lag.share);
    if (steps_ < say_at_ || milliseconds_ < kMilliseconds) return {};
    say_at_ = 10 * steps_;
    said_ = true;
    const std::string share = text::format("%.0f%%", 100 * shares_ / static_cast<double>(steps_));
    return "warning: " + called(rank_) + " has needed " + share +
           " longer than the median of the others for " + report::human_count(steps_) +
           " steps: they wait for it";
  }
  // A step in which another rank was held up says nothing of this one.
  credit_ -= kForgiven;
  if (rank_ >= 0 && credit_ > 0) return {};
  const std::string out = said_ ? "notice: " + called(rank_) +
                                      " is no longer slower than the others, after " +
                                      report::human_count(steps_) + " steps"
                                : "";
  watch(lag);
  return out;
}

void SlowRanks::watch(const Lag& lag) {
  rank_ = lag.rank;
  credit_ = steps_ = lag.rank >= 0 ? 1 : 0;
  say_at_ = kSteps;
  said_ = false;
  shares_ = lag.share;
  milliseconds_ = lag.median_ms * (1 + lag.share);
}

}  // namespace meshwright::train
