#include "sdk/base/pipeline_actions.h"

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "pipeline_lists.h"

namespace meshwright {
namespace {

using Kind = PipelineAction::Kind;

void add(PipelineList& list, Kind kind, int64_t stage, int64_t micro_batch) {
  list.push_back({kind, stage, micro_batch});
}

PipelineList gpipe(int64_t micro_batches, int64_t rank) {
  PipelineList out;
  for (Kind kind : {Kind::forward, Kind::backward})
    for (int64_t j = 0; j < micro_batches; ++j) add(out, kind, rank, j);
  return out;
}

PipelineList one_f_one_b(int64_t size, int64_t micro_batches, int64_t rank) {
  PipelineList out;
  const int64_t ahead = std::min(micro_batches, size - 1 - rank);
  for (int64_t j = 0; j < micro_batches + ahead; ++j) {
    if (j < micro_batches) add(out, Kind::forward, rank, j);
    if (j >= ahead) add(out, Kind::backward, rank, j - ahead);
  }
  return out;
}

PipelineList looped_bfs(int64_t size, int64_t local, int64_t micro_batches, int64_t rank) {
  PipelineList out;
  for (int64_t chunk = 0; chunk < local; ++chunk)
    for (int64_t j = 0; j < micro_batches; ++j) add(out, Kind::forward, chunk * size + rank, j);
  for (int64_t chunk = local - 1; chunk >= 0; --chunk)
    for (int64_t j = micro_batches - 1; j >= 0; --j)
      add(out, Kind::backward, chunk * size + rank, j);
  return out;
}

// Schedules that take `each` micro-batches through one stage before they turn to the next.
struct Rounds {
  int64_t size, local, micro_batches, rank;
  int64_t each = micro_batches / std::max<int64_t>(1, micro_batches / size);

  int64_t all() const { return local * micro_batches; }
  void add_nth(PipelineList& out, Kind kind, int64_t k) const {
    const int64_t turn = k / each % local, chunk = kind == Kind::forward ? turn : local - 1 - turn;
    add(out, kind, chunk * size + rank, k / (each * local) * each + k % each);
  }

  PipelineList whole_backward() const {
    PipelineList out;
    const int64_t ahead = std::min(all(), (local - 1) * each + 2 * (size - 1 - rank));
    for (int64_t k = 0; k < all() + ahead; ++k) {
      if (k < all()) add_nth(out, Kind::forward, k);
      if (k >= ahead) add_nth(out, Kind::backward, k - ahead);
    }
    return out;
  }
  // Gradients of weights wait for as many others as there are ranks before this one.
  PipelineList split_backward() const {
    PipelineList out;
    const int64_t ahead = std::min(all(), (local - 1) * each + size - 1 - rank);
    for (int64_t k = 0; k < ahead; ++k) add_nth(out, Kind::forward, k);
    for (int64_t k = 0; k < all() + rank; ++k) {
      if (k + ahead < all()) add_nth(out, Kind::forward, k + ahead);
      if (k < all()) add_nth(out, Kind::input, k);
      if (k >= rank && k - rank < all()) add_nth(out, Kind::weight, k - rank);
    }
    return out;
  }
};

// Two stages a rank, near and far from the input; numbers count up for each stage and kind.
class VPlaced {
 public:
  VPlaced(int64_t size, int64_t micro_batches, int64_t rank)
      : size_(size),
        micro_batches_(micro_batches),
        rank_(rank),
        stages_{rank, 2 * size - 1 - rank} {}

  PipelineList zero_bubble();
  PipelineList dual_pipe();

 private:
  enum Chunk : size_t { near = 0, far = 1 };

  // Whole backwards count with gradients of the input.
  static size_t counter(Kind kind) {
    return kind == Kind::forward ? 0 : kind == Kind::weight ? 2 : 1;
  }
  int64_t& count(Kind kind, Chunk chunk) { return counts_[counter(kind)][chunk]; }
  void act(Kind kind, Chunk chunk) {
    int64_t j = count(kind, chunk)++;
    if (kind == Kind::input) waiting_.emplace_back(stages_[chunk], j);
    if (j < micro_batches_) add(list_, kind, stages_[chunk], j);
  }
  void repeat(int64_t times, const std::vector<std::pair<Kind, Chunk>>& actions) {
    for (int64_t i = 0; i < times; ++i)
      for (auto [kind, chunk] : actions) act(kind, chunk);
  }
  void pair(Chunk forward, Chunk backward) {
    act(Kind::forward, forward);
    list_.back().paired = true;
    act(Kind::backward, backward);
  }
  void oldest_weight() {
    if (waiting_.empty()) return;
    auto [stage, j] = waiting_.front();
    waiting_.pop_front();
    add(list_, Kind::weight, stage, j);
  }

  int64_t size_, micro_batches_, rank_;
  std::array<int64_t, 2> stages_;
  std::array<std::array<int64_t, 2>, 3> counts_{};
  std::deque<std::pair<int64_t, int64_t>> waiting_;
  PipelineList list_;
};

PipelineList VPlaced::zero_bubble() {
  const Kind f = Kind::forward, i = Kind::input, w = Kind::weight;
  // Fewer micro-batches than fill the pipeline are the first ones of as many as do.
  const int64_t full = std::max(2 * size_ - 1, micro_batches_);
  repeat(2 * (size_ - rank_) - 1, {{f, near}});
  repeat(rank_, {{f, far}, {f, near}});
  repeat(size_ - rank_, {{f, far}, {i, far}, {w, far}});
  while (count(f, far) < count(f, near) || count(f, near) < full) {
    if (count(f, near) < full) act(f, near);
    repeat(1, {{i, near}, {w, near}, {f, far}, {i, far}, {w, far}});
  }
  repeat(rank_, {{i, near}, {i, far}});
  repeat(size_ - rank_, {{i, near}, {w, near}});
  for (Chunk chunk : {far, near})
    while (count(w, chunk) < count(i, chunk)) act(w, chunk);
  return std::move(list_);
}

PipelineList VPlaced::dual_pipe() {
  const Kind f = Kind::forward, b = Kind::backward, i = Kind::input;
  const int64_t after = size_ - 1 - rank_;
  repeat(2 * after, {{f, near}});
  repeat(rank_ + 1, {{f, near}, {f, far}});
  for (int64_t k = 0; k < after; ++k) {
    act(i, far);
    oldest_weight();
    act(f, far);
  }
  for (int64_t k = 0; k < micro_batches_ - 2 * size_ + rank_ + 1; ++k) {
    if (k == 0 && after == 0)
      repeat(1, {{f, near}, {b, far}});
    else
      pair(near, far);
    pair(far, near);
  }
  for (int64_t k = 0; k < after; ++k) {
    act(b, far);
    pair(far, near);
  }
  // The second half of the last backwards is split, so that weights fill the end.
  const int64_t middle = (rank_ + 1) / 2;
  for (int64_t k = 0; k <= rank_; ++k) {
    act(k > middle || (k == middle && rank_ % 2 == 1) ? i : b, far);
    act(k >= middle ? i : b, near);
  }
  for (int64_t k = 0; k < after; ++k) {
    oldest_weight();
    act(i, near);
  }
  for (int64_t k = 0; k <= rank_; ++k) oldest_weight();
  return std::move(list_);
}

// For micro-batches that the schedule runs.
PipelineList rank_actions(PipelineSchedule schedule, int64_t size, int64_t local,
                          int64_t micro_batches, int64_t rank) {
  const Rounds rounds{size, local, micro_batches, rank};
  switch (schedule) {
    case PipelineSchedule::gpipe:
      return gpipe(micro_batches, rank);
    case PipelineSchedule::one_f_one_b:
      return one_f_one_b(size, micro_batches, rank);
    case PipelineSchedule::interleaved_1f1b:
      return rounds.whole_backward();
    case PipelineSchedule::looped_bfs:
      return looped_bfs(size, local, micro_batches, rank);
    case PipelineSchedule::interleaved_zero_bubble:
      return rounds.split_backward();
    case PipelineSchedule::zbv_zero_bubble:
      return VPlaced(size, micro_batches, rank).zero_bubble();
    case PipelineSchedule::dual_pipe_v:
      return VPlaced(size, micro_batches, rank).dual_pipe();
  }
  return {};
}

}  // namespace

std::string action_name(const PipelineAction& action) {
  return std::to_string(action.stage) + static_cast<char>(action.kind) +
         std::to_string(action.micro_batch);
}

std::string actions_row(const PipelineList& actions) {
  std::string out;
  for (size_t i = 0; i < actions.size(); ++i) {
    if (i > 0) out += ',';
    if (actions[i].paired && i + 1 < actions.size()) {
      out += '(' + action_name(actions[i]) + ';' + action_name(actions[i + 1]) + ")OVERLAP_F_B";
      ++i;
    } else {
      out += action_name(actions[i]);
    }
  }
  return out;
}

PipelineLists make_forwards(const std::vector<std::vector<int64_t>>& stages_of_rank,
                            int64_t micro_batches) {
  const auto ranks = static_cast<int64_t>(stages_of_rank.size());
  PipelineLists out;
  for (const std::vector<int64_t>& stages : stages_of_rank) {
    PipelineList& list = out.emplace_back();
    for (int64_t first = 0; first < micro_batches; first += ranks)
      for (int64_t stage : stages)
        for (int64_t j = first; j < std::min(first + ranks, micro_batches); ++j)
          list.push_back({PipelineAction::Kind::forward, stage, j});
  }
  return out;
}

PipelineLists make_actions(PipelineSchedule schedule, int64_t size, int64_t local,
                           int64_t micro_batches) {
  pipeline::check_micro_batches(schedule, size, local, micro_batches);
  PipelineLists out;
  for (int64_t rank = 0; rank < size; ++rank)
    out.push_back(rank_actions(schedule, size, local, micro_batches, rank));
  return out;
}

PipelineLists plan_actions(const PipelinePlan& plan, const PipelineOptions& options,
                           int64_t micro_batches) {
  const auto size = static_cast<int64_t>(plan.stages_of_rank.size());
  if (plan.from_csv) return read_actions(options.schedule_csv, size, micro_batches);
  return make_actions(plan.schedule, size, static_cast<int64_t>(plan.stages_of_rank.front().size()),
                      micro_batches);
}

}  // namespace meshwright
