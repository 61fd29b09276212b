// Messages, times and memory of pipeline runs: closed forms, and what a run may rely on. Long
// because all cases share the forms.
#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <set>

#include "llama_outline.h"
#include "pipeline_cases.h"
#include "sdk/base/shared_schemas.h"

namespace pipeline_simulation_test {

using namespace meshwright;
using namespace meshwright::testing;

namespace {

using Kind = PipelineAction::Kind;
using StepKind = PipelineStep::Kind;

PipelineRun run_of(const PipelineCase& one, PipelineTimes times = {}) {
  const std::vector<PipelineTimes> all(static_cast<size_t>(one.size * one.local), times);
  return simulate_pipeline(one.lists(), all);
}

// What a message carries: 'F' or 'B', the stage that made it, the micro-batch.
std::string message_of(const PipelineStep& step) {
  const bool forward = step.action.kind == Kind::forward;
  int64_t maker = step.action.stage;
  if (step.kind == StepKind::receive) maker += forward ? -1 : 1;
  return action_name({forward ? Kind::forward : Kind::backward, maker, step.action.micro_batch});
}

// How much longer a run is than the work of one rank, in closed form (semantics 11.2 defines the
// bubble); nullopt: there is no form for this case.
std::optional<double> bubble_of(const PipelineCase& one, const PipelineTimes& t) {
  const int64_t p = one.size, m = one.micro_batches;
  const double others = static_cast<double>(p - 1), both = t.forward + t.input + t.weight,
               split = t.forward + std::max(0.0, t.input - t.weight);
  const bool alike = t.forward == t.input && t.input == t.weight;
  switch (one.schedule) {
    case PipelineSchedule::gpipe:
    case PipelineSchedule::one_f_one_b:
      return others * both;
    case PipelineSchedule::looped_bfs:
    case PipelineSchedule::interleaved_1f1b:
      return m >= p ? std::optional(others * both) : std::nullopt;
    case PipelineSchedule::interleaved_zero_bubble:
      return m >= p ? std::optional(others * split) : std::nullopt;
    case PipelineSchedule::zbv_zero_bubble:
      return m >= 2 * p - 1 && alike ? std::optional(others * t.forward) : std::nullopt;
    case PipelineSchedule::dual_pipe_v:
      return others * split;
  }
  return std::nullopt;
}

// Stage-micro-batches in flight, and of these those that wait for gradients of weights.
PipelinePeak peak_of(const PipelineCase& one, int64_t r) {
  const int64_t p = one.size, m = one.micro_batches, v = one.local,
                g = m / std::max<int64_t>(1, m / p);
  PipelinePeak out{v * m, 0, 1};
  switch (one.schedule) {
    case PipelineSchedule::gpipe:
    case PipelineSchedule::looped_bfs:
      out.logits = m;
      break;
    case PipelineSchedule::one_f_one_b:
      out.passes = p - r;
      break;
    case PipelineSchedule::interleaved_1f1b:
      out.passes = (v - 1) * g + 2 * (p - 1 - r) + 1;
      break;
    case PipelineSchedule::interleaved_zero_bubble:
      out.passes = (v - 1) * g + p;
      out.waiting = r + 1;
      break;
    case PipelineSchedule::zbv_zero_bubble:
      out.passes = 2 * p;
      out.waiting = 2 * r + 1;
      break;
    case PipelineSchedule::dual_pipe_v:
      // With the fewest micro-batches the first rank has one less.
      out.passes = 2 * p + (r == 0 && p > 1 && m == 2 * p - 1 ? 0 : 1);
      out.waiting = r + 1;
      break;
  }
  out.passes = std::min(out.passes, v * m);
  out.waiting = std::min(out.waiting, out.passes);
  if (r != (one.v_placed() ? 0 : p - 1)) out.logits = 0;
  return out;
}

}  // namespace

TEST_CASE("bubbles are what the closed forms say") {
  int64_t held = 0;
  for (const PipelineCase& one : pipeline_cases())
    for (const PipelineTimes& times : {PipelineTimes{1, 1, 1}, PipelineTimes{1, 2, 1},
                                       PipelineTimes{2, 1, 3}, PipelineTimes{3, 4, 3}}) {
      const std::optional<double> expected = bubble_of(one, times);
      if (!expected) continue;
      INFO(one.text());
      const PipelineRun run = run_of(one, times);
      const double work = static_cast<double>(one.local * one.micro_batches) *
                          (times.forward + times.input + times.weight),
                   bubble = run.makespan - work;
      // "Nearly": where gradients of inputs take longer than those of weights, DualPipeV may lose
      // the difference twice.
      const double more =
          one.schedule == PipelineSchedule::dual_pipe_v
              ? static_cast<double>(one.size - 1) * std::max(0.0, times.input - times.weight)
              : 0;
      REQUIRE(bubble >= *expected);
      REQUIRE(bubble <= *expected + more);
      REQUIRE(run.bubble == doctest::Approx(bubble / (work + bubble)));
      ++held;
    }
  CHECK(held > 6000);

  auto share = [](PipelineSchedule schedule, int64_t local) {
    return std::lround(100 * run_of({schedule, 4, local, 8}).bubble);
  };
  CHECK(share(PipelineSchedule::one_f_one_b, 1) == 27);
  CHECK(share(PipelineSchedule::interleaved_1f1b, 2) == 16);
  CHECK(share(PipelineSchedule::interleaved_zero_bubble, 2) == 6);
  CHECK(share(PipelineSchedule::zbv_zero_bubble, 2) == 6);
  CHECK(share(PipelineSchedule::dual_pipe_v, 2) == 6);
}

TEST_CASE("stages in flight and weights that wait are those of the table in cost_model.md") {
  for (const PipelineCase& one : pipeline_cases()) {
    INFO(one.text());
    const PipelineRun run = run_of(one);
    REQUIRE(run.peaks.size() == static_cast<size_t>(one.size));
    for (int64_t rank = 0; rank < one.size; ++rank) {
      CAPTURE(rank);
      const PipelinePeak expected = peak_of(one, rank),
                         &counted = run.peaks[static_cast<size_t>(rank)];
      REQUIRE(counted.logits == expected.logits);
      // Too few micro-batches to fill the V: less is in flight.
      if (one.schedule == PipelineSchedule::zbv_zero_bubble &&
          one.micro_batches < 2 * one.size - 1) {
        REQUIRE(counted.passes <= expected.passes);
        REQUIRE(counted.waiting <= expected.waiting);
        continue;
      }
      REQUIRE(counted.passes == expected.passes);
      REQUIRE(counted.waiting == expected.waiting);
    }
  }
}

TEST_CASE("receives stand in the order of the sends, before the actions that use them") {
  for (const PipelineCase& one : pipeline_cases()) {
    INFO(one.text());
    const PipelineLists lists = one.lists();
    const PipelineRun run = simulate_pipeline(lists);
    std::map<std::pair<size_t, size_t>, std::vector<std::string>> sent, received;
    size_t messages = 0;
    for (size_t rank = 0; rank < lists.size(); ++rank) {
      PipelineList computed;
      std::set<std::string> posted;
      int64_t before = -1;
      for (const PipelineStep& step : run.steps[rank]) {
        REQUIRE(step.order >= before);
        before = step.order;
        const auto peer = static_cast<size_t>(step.peer);
        if (step.kind == StepKind::send) {
          REQUIRE(computed.back() == step.action);
          sent[{rank, peer}].push_back(message_of(step));
          ++messages;
        } else if (step.kind == StepKind::receive) {
          received[{peer, rank}].push_back(message_of(step));
          REQUIRE(posted.insert(action_name(step.action)).second);
        } else {
          computed.push_back(step.action);
          posted.erase(action_name(step.action));
        }
      }
      REQUIRE(computed == lists[rank]);
      REQUIRE(posted.empty());
    }
    REQUIRE(sent == received);
    // Each boundary between ranks is crossed both ways by every micro-batch; the stages in the
    // middle of a V lie on one rank.
    const int64_t boundaries =
        one.size == 1 ? 0 : one.size * one.local - 1 - (one.v_placed() ? 1 : 0);
    REQUIRE(static_cast<int64_t>(messages) == 2 * boundaries * one.micro_batches);
  }
}

TEST_CASE("a run ends in whatever order its ranks get on, with no more buffers than slots") {
  // A rank sends when it has computed, and waits while the buffers behind its stage are taken: from
  // a forward until its gradient has been used there.
  for (const PipelineCase& one : pipeline_cases()) {
    if (one.micro_batches > 12 || one.size > 5) continue;
    INFO(one.text());
    const PipelineRun run = run_of(one);
    std::map<std::pair<size_t, size_t>, std::deque<std::string>> way;  // in FIFO order
    std::vector<size_t> next(run.steps.size()), arrived_until(run.steps.size());
    std::vector<std::set<std::string>> arrived(run.steps.size());
    std::vector<int64_t> taken(run.slots.size());
    auto step_of = [&](size_t rank) {
      const PipelineStep& step = run.steps[rank][next[rank]];
      const auto s = static_cast<size_t>(step.action.stage), peer = static_cast<size_t>(step.peer);
      const std::string name = action_name(step.action);
      if (step.kind == StepKind::receive) {
        ++next[rank];
        return true;
      }
      if (step.kind == StepKind::send) {
        if (step.action.kind == Kind::forward && taken[s] == run.slots[s]) return false;
        if (step.action.kind == Kind::forward) ++taken[s];
        way[{rank, peer}].push_back(message_of(step));
        ++next[rank];
        return true;
      }
      // Posted receives are filled in their order, so far as something is on the way.
      bool needs = false;
      for (size_t i = arrived_until[rank]; i < next[rank]; ++i) {
        const PipelineStep& post = run.steps[rank][i];
        if (post.kind != StepKind::receive) continue;
        std::deque<std::string>& from = way[{static_cast<size_t>(post.peer), rank}];
        if (from.empty() || arrived[rank].contains(action_name(post.action))) continue;
        if (from.front() != message_of(post)) continue;
        from.pop_front();
        arrived[rank].insert(action_name(post.action));
      }
      for (size_t i = 0; i < next[rank]; ++i)
        needs = needs || (run.steps[rank][i].kind == StepKind::receive &&
                          action_name(run.steps[rank][i].action) == name);
      if (needs && !arrived[rank].contains(name)) return false;
      const bool crosses = s + 1 < run.slots.size() && needs &&
                           (step.action.kind == Kind::backward || step.action.kind == Kind::input);
      if (crosses) --taken[s];
      ++next[rank];
      return true;
    };
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = run.steps.size(); rank-- > 0;)
        while (next[rank] < run.steps[rank].size() && step_of(rank)) moved = true;
    }
    for (size_t rank = 0; rank < run.steps.size(); ++rank)
      REQUIRE(next[rank] == run.steps[rank].size());
  }
}

TEST_CASE("messages may lie in memory that is used again in turn, of the length that a run says") {
  // Who sends message n waits until the pass of message n - length to the same rank is over.
  int64_t stuck = 0;
  for (const PipelineCase& one : pipeline_cases()) {
    if (one.micro_batches > 12 || one.size > 5) continue;
    INFO(one.text());
    const PipelineRun run = run_of(one);
    const size_t ranks = run.steps.size();
    auto ends = [&](bool forwards, int64_t less) {
      std::vector<std::vector<std::deque<bool>>> used(ranks, std::vector<std::deque<bool>>(ranks));
      using Message = std::pair<size_t, size_t>;  // from, number
      std::vector<std::map<std::string, Message>> needed(ranks);
      std::vector<std::map<std::pair<int64_t, int64_t>, std::vector<Message>>> held(ranks);
      std::vector<std::vector<size_t>> expected(ranks, std::vector<size_t>(ranks));
      std::vector<size_t> next(ranks);
      auto take = [&](size_t rank) {
        const PipelineStep& step = run.steps[rank][next[rank]];
        const auto peer = static_cast<size_t>(std::max<int64_t>(step.peer, 0));
        const std::string name = action_name(step.action);
        if (step.kind == StepKind::receive) {
          needed[rank][name] = {peer, expected[peer][rank]++};
        } else if (step.kind == StepKind::send) {
          std::deque<bool>& sent = used[rank][peer];
          const int64_t length = std::max<int64_t>(run.messages_ahead[rank][peer] - less, 1);
          const auto before = static_cast<int64_t>(sent.size()) - length;
          if (before >= 0 &&
              !std::all_of(sent.begin(), sent.begin() + before + 1, [](bool b) { return b; }))
            return false;
          sent.push_back(false);
        } else {
          std::vector<Message>& of_pass = held[rank][{step.action.stage, step.action.micro_batch}];
          if (auto found = needed[rank].find(name); found != needed[rank].end()) {
            if (found->second.second >= used[found->second.first][rank].size()) return false;
            of_pass.push_back(found->second);
            needed[rank].erase(found);
          }
          if (step.action.kind == Kind::backward || step.action.kind == Kind::weight)
            for (const auto& [from, number] : of_pass) used[from][rank][number] = true;
        }
        ++next[rank];
        return true;
      };
      for (bool moved = true; moved;) {
        moved = false;
        for (size_t i = 0; i < ranks; ++i)
          for (size_t rank = forwards ? i : ranks - 1 - i;
               next[rank] < run.steps[rank].size() && take(rank);)
            moved = true;
      }
      for (size_t rank = 0; rank < ranks; ++rank)
        if (next[rank] < run.steps[rank].size()) return false;
      return true;
    };
    REQUIRE(ends(true, 0));
    REQUIRE(ends(false, 0));
    stuck += ends(true, 1) ? 0 : 1;
  }
  CHECK(stuck > 0);  // one less, where there are several, does not do everywhere
}

TEST_CASE("slots and spans of a small run") {
  const PipelineRun run = run_of({PipelineSchedule::one_f_one_b, 4, 1, 8});
  CHECK(run.slots == std::vector<int64_t>{4, 3, 2, 1});
  CHECK(run.makespan == 33);
  const std::vector<PipelineSpan>& last = run.spans.back();
  CHECK(action_name(last[0].action) == "3F0");
  CHECK(last[0].start == 3);
  CHECK(last[1].start == 4);
  CHECK(last[1].end == 6);

  // The peak may lie long before the last forward.
  const PipelineList alone = {{Kind::forward, 0, 0},  {Kind::forward, 0, 1},
                              {Kind::backward, 0, 0}, {Kind::backward, 0, 1},
                              {Kind::forward, 0, 2},  {Kind::backward, 0, 2}};
  CHECK(simulate_pipeline({alone}).slots == std::vector<int64_t>{2});

  // Stages of their own lengths: the slow one sets the pace.
  const std::vector<PipelineTimes> times = {{1, 1, 1}, {2, 2, 2}};
  const PipelineRun uneven =
      simulate_pipeline(make_actions(PipelineSchedule::gpipe, 2, 1, 3), times);
  CHECK(uneven.makespan == 1 + 3 * 6 + 2);
  CHECK(uneven.bubble == doctest::Approx(1 - (9.0 + 18.0) / (2 * 21.0)));
}

TEST_CASE("a stage has as many slots as it ever has micro-batches in flight") {
  for (const PipelineCase& one : pipeline_cases()) {
    INFO(one.text());
    const PipelineLists lists = one.lists();
    const PipelineRun run = simulate_pipeline(lists);
    REQUIRE(static_cast<int64_t>(run.slots.size()) == one.size * one.local);
    for (size_t stage = 0; stage < run.slots.size(); ++stage) {
      size_t most = 0;
      for (const PipelineList& list : lists) {
        std::set<int64_t> open;
        for (const PipelineAction& action : list) {
          if (action.stage != static_cast<int64_t>(stage)) continue;
          if (action.kind == Kind::forward) open.insert(action.micro_batch);
          if (action.kind == Kind::backward || action.kind == Kind::weight)
            open.erase(action.micro_batch);
          most = std::max(most, open.size());
        }
      }
      REQUIRE(run.slots[stage] == static_cast<int64_t>(most));
    }
  }
}

TEST_CASE("lists that wait for each other are refused with what every rank waits for") {
  // Rank 0 wants the gradient of the second micro-batch before it has sent that.
  PipelineLists lists = make_actions(PipelineSchedule::one_f_one_b, 3, 1, 2);
  std::swap(lists[0][1], lists[0][2]);  // 0F0 0B0 0F1 0B1
  refused(ErrorCode::bad_pipeline,
          "the lists of actions get stuck: rank 0 waits at 0B0 for 1B0; rank 1 waits at 1F1 for "
          "0F1; rank 2 waits at 2F1 for 1F1",
          [&] { simulate_pipeline(lists); });
  // A rank that has nothing left to do is no reason to go on.
  lists[0] = {{Kind::forward, 0, 0}};
  lists[1] = {{Kind::forward, 1, 0}, {Kind::weight, 1, 0}};
  lists[2] = {{Kind::backward, 2, 0}};
  refused(ErrorCode::bad_pipeline,
          "the lists of actions get stuck: rank 0 is done; rank 1 waits at 1W0 for 1I0; rank 2 "
          "waits at 2B0 for 2F0",
          [&] { simulate_pipeline(lists); });
}

TEST_CASE("a plan warns of a bubble above a quarter and says what halves it") {
  struct Row {
    const char* schedule;
    int64_t pp, layers, batch, samples;
    const char* warning;  // "" = none
  };
  const Row rows[] = {
      {"1F1B", 4, 32, 8, 1,
       "the ranks of the pipeline idle 27% of a run of 8 micro-batches; 19 micro-batches "
       "(distributed.pipeline.pp_batch_size = 19) make it 14%"},
      {"1F1B", 4, 32, 9, 1, ""},  // 25%
      {"GPipe", 4, 32, 8, 2,
       "the ranks of the pipeline idle 43% of a run of 4 micro-batches; 11 micro-batches "
       "(distributed.pipeline.pp_batch_size = 22) make it 21%"},
      {"Interleaved1F1B", 4, 32, 8, 1, ""},
      {"Interleaved1F1B", 4, 40, 4, 1,
       "the ranks of the pipeline idle 27% of a run of 4 micro-batches; 12 micro-batches "
       "(distributed.pipeline.pp_batch_size = 12) make it 11%, 5 stages a rank 13%"},
      // As many stages as five would need layers for.
      {"Interleaved1F1B", 4, 19, 4, 1,
       "the ranks of the pipeline idle 27% of a run of 4 micro-batches; 12 micro-batches "
       "(distributed.pipeline.pp_batch_size = 12) make it 11%"},
      {"DualPipeV", 4, 32, 7, 1, ""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.schedule);
    CAPTURE(row.batch);
    PipelineOptions options;
    options.schedule = row.schedule;
    options.batch_size = row.batch;
    options.microbatch_size = row.samples;
    std::vector<std::string> warnings =
        plan_pipeline(llama_outline({.layers = row.layers}), row.pp, options).warnings;
    if (*row.warning == '\0') {
      CHECK(warnings.empty());
      continue;
    }
    REQUIRE(warnings.size() == 1);
    CHECK(warnings[0] == row.warning);
  }
  // Where a run takes all samples of a step, the key is that of the step.
  PipelineOptions whole;
  whole.schedule = "1F1B";
  whole.batch_size = 8;
  whole.microbatch_size = 2;
  const ModelOutline eight = llama_outline({.layers = 8});
  const std::vector<std::string> warnings = plan_pipeline(eight, 4, whole, 3).warnings;
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("(step_scheduler.global_batch_size = 66) make it 21%") !=
        std::string::npos);
  whole.schedule = "DualPipeV";
  const Error error =
      refused(ErrorCode::bad_pipeline, "", [&] { plan_pipeline(eight, 4, whole, 3); });
  CHECK(error.key() == "step_scheduler.global_batch_size");
  CHECK(error.helps().at(0) == "set step_scheduler.global_batch_size = 42");
  // What it names is the least that halves the bubble.
  for (const PipelineCase& one : pipeline_cases()) {
    if (one.size < 2 || one.size > 6 || one.micro_batches > 8) continue;
    INFO(one.text());
    const double bubble = run_of(one).bubble;
    PipelineOptions options;
    options.schedule = schedule_name(one.schedule);
    options.batch_size = one.micro_batches;
    if (one.local > 2) options.layers_per_stage = 1;
    const ModelOutline model = llama_outline({.layers = one.size * one.local});
    std::string said;
    for (const std::string& warning : plan_pipeline(model, one.size, options).warnings)
      if (warning.find("idle") != std::string::npos) said = warning;
    REQUIRE(said.empty() == (bubble <= 0.25));
    if (said.empty()) continue;
    const size_t at = said.find("pp_batch_size = ");
    REQUIRE(at != std::string::npos);
    const int64_t enough = std::stoll(said.substr(at + 16));
    auto with = [&](int64_t m) { return run_of({one.schedule, one.size, one.local, m}).bubble; };
    REQUIRE(with(enough) <= bubble / 2);
    const bool rounds = one.schedule == PipelineSchedule::interleaved_1f1b ||
                        one.schedule == PipelineSchedule::interleaved_zero_bubble;
    const int64_t fewer = enough - (rounds ? one.size : 1);
    if (fewer > one.micro_batches && runs_micro_batches(one.schedule, one.size, fewer))
      REQUIRE(with(fewer) > bubble / 2);
  }
}

}  // namespace pipeline_simulation_test
