#include <algorithm>
#include <tuple>
#include <utility>

#include "pipeline_parts.h"
#include "sdk/base/text.h"

namespace meshwright {
namespace {

using Kind = PipelineAction::Kind;

// What one stage has done with one micro-batch; ends of actions, in the order of the total order.
struct Progress {
  std::optional<double> forward, gradient;
  int64_t input_message = 0, gradient_message = 0;  // numbers of what came from another rank
  Kind backward = Kind::backward;                   // what the list of its rank holds
  bool returns = false;                             // whether it holds any
};

PipelinePeak peak_of(const PipelineList& actions, int64_t last_stage) {
  PipelinePeak now{0, 0, 0}, most{0, 0, 0};
  for (const PipelineAction& action : actions) {
    const bool last = action.stage == last_stage;
    switch (action.kind) {
      case Kind::forward:
        ++now.passes;
        if (last) ++now.logits;
        break;
      case Kind::backward:
        --now.passes;
        if (last) --now.logits;
        break;
      case Kind::input:
        ++now.waiting;
        if (last) --now.logits;
        break;
      case Kind::weight:
        --now.passes;
        --now.waiting;
        break;
    }
    most.passes = std::max(most.passes, now.passes);
    most.waiting = std::max(most.waiting, now.waiting);
    most.logits = std::max(most.logits, now.logits);
  }
  return most;
}

class Simulation {
 public:
  Simulation(const PipelineLists& lists, std::span<const PipelineTimes> times,
             const pipeline::ListNames& names, double message)
      : lists_(lists), names_(names), times_(times.begin(), times.end()), message_time_(message) {
    int64_t last_stage = -1, last_micro_batch = -1;
    for (const PipelineList& list : lists)
      for (const PipelineAction& action : list) {
        last_stage = std::max(last_stage, action.stage);
        last_micro_batch = std::max(last_micro_batch, action.micro_batch);
      }
    stages_ = last_stage + 1;
    micro_batches_ = last_micro_batch + 1;
    times_.resize(static_cast<size_t>(stages_));
    rank_of_.resize(static_cast<size_t>(stages_));
    progress_.resize(static_cast<size_t>(stages_ * micro_batches_));
    for (size_t rank = 0; rank < lists.size(); ++rank)
      for (const PipelineAction& action : lists[rank]) {
        rank_of_[static_cast<size_t>(action.stage)] = static_cast<int64_t>(rank);
        if (action.kind == Kind::input) at(action.stage, action.micro_batch).backward = Kind::input;
        if (action.kind != Kind::forward) at(action.stage, action.micro_batch).returns = true;
      }
    for (size_t rank = 0; rank < lists.size(); ++rank)
      run_.spans.emplace_back().reserve(lists[rank].size());
    next_.resize(lists.size());
    run_.steps.resize(lists.size());
    run_.messages_ahead.assign(lists.size(), std::vector<int64_t>(lists.size()));
    messages_.resize(lists.size() * lists.size());
  }

  PipelineRun run() {
    size_t left = 0;
    for (const PipelineList& list : lists_) left += list.size();
    while (left > 0) {
      const size_t before = left;
      for (size_t rank = 0; rank < lists_.size(); ++rank)
        if (next_[rank] < lists_[rank].size() && take(rank)) --left;
      if (left == before) throw stuck();
    }
    count();
    return std::move(run_);
  }

 private:
  Progress& at(int64_t stage, int64_t micro_batch) {
    return progress_[static_cast<size_t>(stage * micro_batches_ + micro_batch)];
  }

  // When the action's input exists; nullopt: not yet.
  std::optional<double> input_of(const PipelineAction& action) {
    const int64_t s = action.stage, j = action.micro_batch;
    switch (action.kind) {
      case Kind::forward:
        return s == 0 ? std::optional(0.0) : arrival(at(s - 1, j).forward, s - 1, s);
      case Kind::backward:
      case Kind::input:
        if (!at(s, j).forward) return std::nullopt;
        return s + 1 == stages_ ? std::optional(0.0) : arrival(at(s + 1, j).gradient, s + 1, s);
      case Kind::weight:
        return at(s, j).gradient;
    }
    return std::nullopt;
  }

  // When what stage `from` has made by `end` is with stage `to`.
  std::optional<double> arrival(std::optional<double> end, int64_t from, int64_t to) const {
    if (end && rank_of_[static_cast<size_t>(from)] != rank_of_[static_cast<size_t>(to)])
      *end += message_time_;
    return end;
  }

  double length_of(const PipelineAction& action) const {
    const PipelineTimes& times = times_[static_cast<size_t>(action.stage)];
    switch (action.kind) {
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

  // `user`: the action that the message is for.
  void pass_on(size_t rank, const PipelineAction& made, const PipelineAction& user) {
    const auto here = static_cast<int64_t>(rank), there = rank_of_[static_cast<size_t>(user.stage)];
    if (here == there) return;  // stages of one rank hand over directly
    run_.steps[rank].push_back({PipelineStep::Kind::send, made, there, order_});
    run_.steps[static_cast<size_t>(there)].push_back(
        {PipelineStep::Kind::receive, user, here, order_});
    Messages& messages = messages_[rank * lists_.size() + static_cast<size_t>(there)];
    message_of(user) = messages.send();
    int64_t& ahead = run_.messages_ahead[rank][static_cast<size_t>(there)];
    ahead = std::max(ahead, messages.ahead());
  }

  int64_t& message_of(const PipelineAction& user) {
    Progress& progress = at(user.stage, user.micro_batch);
    return user.kind == Kind::forward ? progress.input_message : progress.gradient_message;
  }

  // The last action of a pass is done with what came for it.
  void drop_messages(size_t rank, const PipelineAction& action) {
    const Progress& pass = at(action.stage, action.micro_batch);
    if (action.kind == Kind::input || (action.kind == Kind::forward && pass.returns)) return;
    auto drop = [&](int64_t message, int64_t from) {
      if (message == 0) return;
      const auto sender = static_cast<size_t>(rank_of_[static_cast<size_t>(from)]);
      messages_[sender * lists_.size() + rank].drop(message);
    };
    drop(pass.input_message, action.stage - 1);
    drop(pass.gradient_message, action.stage + 1);
  }

  bool take(size_t rank) {
    const PipelineAction& action = lists_[rank][next_[rank]];
    const std::optional<double> input = input_of(action);
    if (!input) return false;
    drop_messages(rank, action);
    std::vector<PipelineSpan>& spans = run_.spans[rank];
    const double start = std::max(*input, spans.empty() ? 0.0 : spans.back().end),
                 end = start + length_of(action);
    spans.push_back({action, start, end});
    run_.steps[rank].push_back({PipelineStep::Kind::compute, action, -1, order_});
    const int64_t s = action.stage, j = action.micro_batch;
    if (action.kind == Kind::forward) {
      at(s, j).forward = end;
      if (s + 1 < stages_) pass_on(rank, action, {Kind::forward, s + 1, j});
    } else if (action.kind != Kind::weight) {
      at(s, j).gradient = end;
      if (s > 0) pass_on(rank, action, {at(s - 1, j).backward, s - 1, j});
    }
    ++next_[rank];
    ++order_;
    return true;
  }

  Error stuck() {
    std::vector<std::string> lines;
    for (size_t rank = 0; rank < lists_.size(); ++rank) {
      std::string line = "rank " + std::to_string(rank);
      if (next_[rank] == lists_[rank].size()) {
        lines.push_back(line + " is done");
        continue;
      }
      const PipelineAction& action = lists_[rank][next_[rank]];
      const int64_t s = action.stage, j = action.micro_batch;
      PipelineAction missing{Kind::forward, s, j};  // its own, unless another stage's is
      if (action.kind == Kind::forward)
        missing.stage = s - 1;
      else if (action.kind == Kind::weight)
        missing.kind = Kind::input;
      else if (at(s, j).forward)
        missing = {at(s + 1, j).backward, s + 1, j};
      if (names_.place) line += names_.place(rank, next_[rank]);
      lines.push_back(line + " waits at " + action_name(action) + " for " + action_name(missing));
    }
    return pipeline::bad(names_.lists + " get stuck: " + text::join(lines, "; "), pipeline::kCsvKey)
        .help("let every action stand behind those that it waits for, on all ranks together")
        .help(pipeline::leave_out_csv());
  }

  void count() {
    double work = 0;
    std::vector<int64_t> now(static_cast<size_t>(stages_));
    run_.slots.resize(static_cast<size_t>(stages_));
    for (size_t rank = 0; rank < lists_.size(); ++rank) {
      run_.peaks.push_back(peak_of(lists_[rank], stages_ - 1));
      for (const PipelineAction& action : lists_[rank]) {
        work += length_of(action);
        const auto s = static_cast<size_t>(action.stage);
        if (action.kind == Kind::forward)
          run_.slots[s] = std::max(run_.slots[s], ++now[s]);
        else if (action.kind != Kind::input)
          --now[s];
      }
      if (!run_.spans[rank].empty())
        run_.makespan = std::max(run_.makespan, run_.spans[rank].back().end);
    }
    if (run_.makespan > 0)
      run_.bubble = 1 - work / (static_cast<double>(lists_.size()) * run_.makespan);
  }

  const PipelineLists& lists_;
  const pipeline::ListNames& names_;
  std::vector<PipelineTimes> times_;  // [stage]
  double message_time_;
  int64_t stages_ = 0, micro_batches_ = 0, order_ = 0;
  std::vector<int64_t> rank_of_;    // [stage]
  std::vector<Progress> progress_;  // [stage, micro-batch]
  std::vector<size_t> next_;        // [rank]
  // Messages of a pair of ranks, by number from 1.
  class Messages {
   public:
    int64_t send() {
      held_.push_back(true);
      return std::ssize(held_);
    }
    void drop(int64_t message) {
      held_[static_cast<size_t>(message - 1)] = false;
      while (first_ < held_.size() && !held_[first_]) ++first_;
    }
    // From the oldest that is held to the last that was sent.
    int64_t ahead() const { return std::ssize(held_) - static_cast<int64_t>(first_); }

   private:
    std::vector<bool> held_;
    size_t first_ = 0;
  };
  std::vector<Messages> messages_;  // [from, to]
  PipelineRun run_;
};

}  // namespace

namespace pipeline {

PipelineRun run_lists(const PipelineLists& lists, const ListNames& names) {
  return Simulation(lists, {}, names, 0).run();
}

std::shared_ptr<const PipelineRun> run_of_schedule(PipelineSchedule schedule, int64_t size,
                                                   int64_t local, int64_t micro_batches) {
  using Key = std::tuple<PipelineSchedule, int64_t, int64_t, int64_t>;
  thread_local std::pair<Key, std::shared_ptr<const PipelineRun>> last;
  const Key key{schedule, size, local, micro_batches};
  if (!last.second || last.first != key)
    last = {key, std::make_shared<PipelineRun>(
                     simulate_pipeline(make_actions(schedule, size, local, micro_batches)))};
  return last.second;
}

}  // namespace pipeline

PipelineRun simulate_pipeline(const PipelineLists& lists, std::span<const PipelineTimes> times,
                              double message) {
  const pipeline::ListNames names;
  return Simulation(lists, times, names, message).run();
}

}  // namespace meshwright
