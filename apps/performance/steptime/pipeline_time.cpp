#include "apps/performance/steptime/pipeline_time.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "meshwright/error.h"

namespace meshwright::steptime {
namespace {

using Kind = PipelineAction::Kind;
constexpr double kNotYet = -1;

double length_of(const PipelineTimes& times, Kind kind) {
  switch (kind) {
    case Kind::forward:
      return times.forward;
    case Kind::backward:
      return times.input + times.weight;
    case Kind::input:
      return times.input;
    case Kind::weight:
      return times.weight;
  }
  return 0;
}

class Clock {
 public:
  Clock(const PipelineLists& lists, std::span<const PipelineTimes> times, double message)
      : lists_(lists), times_(times), message_(message) {
    int64_t last = 0;
    for (const PipelineList& list : lists)
      for (const PipelineAction& action : list) last = std::max(last, action.micro_batch);
    micro_batches_ = static_cast<size_t>(last) + 1;
    forward_.assign(times.size() * micro_batches_, kNotYet);
    gradient_ = forward_;
    rank_of_.resize(times.size());
    for (size_t rank = 0; rank < lists.size(); ++rank)
      for (const PipelineAction& action : lists[rank])
        rank_of_[static_cast<size_t>(action.stage)] = rank;
  }

  double run() {
    std::vector<size_t> next(lists_.size());
    std::vector<double> free(lists_.size());
    size_t left = 0;
    for (const PipelineList& list : lists_) left += list.size();
    while (left > 0) {
      const size_t before = left;
      for (size_t rank = 0; rank < lists_.size(); ++rank)
        while (next[rank] < lists_[rank].size()) {
          const PipelineAction& action = lists_[rank][next[rank]];
          const double input = input_of(action);
          if (input == kNotYet) break;
          free[rank] = std::max(free[rank], input) +
                       length_of(times_[static_cast<size_t>(action.stage)], action.kind);
          if (action.kind == Kind::forward)
            at(forward_, action) = free[rank];
          else if (action.kind != Kind::weight)
            at(gradient_, action) = free[rank];
          ++next[rank];
          --left;
        }
      if (left == before)
        throw Error(ErrorCode::bad_pipeline, "lists of actions wait for each other");
    }
    return *std::max_element(free.begin(), free.end());
  }

 private:
  double& at(std::vector<double>& ends, const PipelineAction& action) const {
    return ends[static_cast<size_t>(action.stage) * micro_batches_ +
                static_cast<size_t>(action.micro_batch)];
  }
  // When what another stage made is here.
  double arrives(const std::vector<double>& ends, size_t from, const PipelineAction& action) const {
    const double end = ends[from * micro_batches_ + static_cast<size_t>(action.micro_batch)];
    const bool here = rank_of_[from] == rank_of_[static_cast<size_t>(action.stage)];
    return end == kNotYet || here ? end : end + message_;
  }
  double input_of(const PipelineAction& action) {
    const auto stage = static_cast<size_t>(action.stage);
    if (action.kind == Kind::forward) return stage == 0 ? 0 : arrives(forward_, stage - 1, action);
    if (action.kind == Kind::weight) return at(gradient_, action);
    const double own = at(forward_, action);
    if (own == kNotYet || stage + 1 == times_.size()) return own;
    const double behind = arrives(gradient_, stage + 1, action);
    return behind == kNotYet ? kNotYet : std::max(own, behind);
  }

  const PipelineLists& lists_;
  std::span<const PipelineTimes> times_;
  double message_;
  size_t micro_batches_ = 0;
  std::vector<double> forward_, gradient_;  // ends, of [stage, micro-batch]
  std::vector<size_t> rank_of_;             // [stage]
};

}  // namespace

double makespan(const PipelineLists& lists, std::span<const PipelineTimes> times, double message) {
  return Clock(lists, times, message).run();
}

double makespan(PipelineSchedule schedule, int64_t ranks, int64_t local, int64_t micro_batches,
                std::span<const PipelineTimes> times, double message) {
  auto take = [&](int64_t m) {
    return makespan(make_actions(schedule, ranks, local, m), times, message);
  };
  if (micro_batches <= 4 * ranks) return take(micro_batches);
  const double two = take(2 * ranks), three = take(3 * ranks);
  return two + (three - two) / static_cast<double>(ranks) *
                   static_cast<double>(micro_batches - 2 * ranks);
}

}  // namespace meshwright::steptime
