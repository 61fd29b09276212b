#include <algorithm>
#include <cmath>

#include "pipeline_lists.h"
#include "pipeline_parts.h"

namespace meshwright {

int64_t pipeline_micro_batches(const PipelineOptions& options) {
  return options.batch_size.value_or(0) / std::max<int64_t>(options.microbatch_size, 1);
}

int64_t step_samples(const Workload& workload) {
  int64_t samples = 0;
  return __builtin_mul_overflow(std::max<int64_t>(workload.local_batch, 1),
                                std::max<int64_t>(workload.accumulation, 1), &samples)
             ? INT64_MAX
             : samples;
}

int64_t pipeline_runs(const PipelineOptions& options, const Workload& workload) {
  const int64_t samples = step_samples(workload),
                batch = std::max<int64_t>(options.batch_size.value_or(samples), 1);
  return std::max<int64_t>(samples / batch + (samples % batch != 0), 1);
}

bool runs_micro_batches(PipelineSchedule schedule, int64_t size, int64_t micro_batches) {
  if (micro_batches < 1) return false;
  switch (schedule) {
    case PipelineSchedule::gpipe:
    case PipelineSchedule::one_f_one_b:
    case PipelineSchedule::looped_bfs:
    case PipelineSchedule::zbv_zero_bubble:
      return true;
    case PipelineSchedule::interleaved_1f1b:
    case PipelineSchedule::interleaved_zero_bubble:
      // Rounds of equally many, at least as many as there are ranks.
      return micro_batches % std::max<int64_t>(1, micro_batches / size) == 0;
    case PipelineSchedule::dual_pipe_v:
      return micro_batches >= 2 * size - 1;
  }
  return false;
}

namespace pipeline {
namespace {

// Above this the plan says something.
constexpr double kMostBubble = 0.25;

double bubble_of(PipelineSchedule schedule, int64_t size, int64_t local, int64_t micro_batches) {
  return simulate_pipeline(make_actions(schedule, size, local, micro_batches)).bubble;
}

std::string percent(double part) {
  return std::to_string(static_cast<int64_t>(std::lround(100 * part))) + "%";
}

// The least of low + 1..high for which `good` holds, if it holds from there on and at high.
template <class Good>
int64_t least(int64_t low, int64_t high, const Good& good) {
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    (good(middle) ? high : low) = middle;
  }
  return high;
}

// The fewest micro-batches, of those that every schedule takes, with a bubble of at most `wanted`.
std::optional<int64_t> enough_micro_batches(PipelineSchedule schedule, int64_t size, int64_t local,
                                            int64_t micro_batches, double wanted) {
  // Whole rounds where the schedule goes in rounds.
  const bool rounds = schedule == PipelineSchedule::interleaved_1f1b ||
                      schedule == PipelineSchedule::interleaved_zero_bubble;
  const int64_t step = rounds ? size : 1;
  auto good = [&](int64_t k) { return bubble_of(schedule, size, local, k * step) <= wanted; };
  int64_t low = micro_batches / step, high = low + 1;
  while (can_be_listed(size, local, high * step)) {
    if (runs_micro_batches(schedule, size, high * step) && good(high))
      return step * least(low, high, [&](int64_t k) {
               return runs_micro_batches(schedule, size, k * step) && good(k);
             });
    low = high;
    high *= 2;
  }
  return std::nullopt;
}

}  // namespace

bool can_be_listed(int64_t size, int64_t local, int64_t micro_batches) {
  int64_t actions = 0;
  // A forward and up to two halves of a backward.
  return !__builtin_mul_overflow(size, local, &actions) &&
         !__builtin_mul_overflow(actions, 3, &actions) &&
         !__builtin_mul_overflow(actions, micro_batches, &actions) && actions <= kMostActions;
}

RunSize run_size(const PipelineOptions& options, int64_t data_ranks) {
  const int64_t samples = std::max<int64_t>(options.microbatch_size, 1);
  return data_ranks > 0 ? RunSize{kGlobalKey, samples * data_ranks} : RunSize{kBatchKey, samples};
}

void check_micro_batches(PipelineSchedule schedule, int64_t size, int64_t local,
                         int64_t micro_batches, const RunSize& run) {
  const std::string name(schedule_name(schedule)),
      found = counted(micro_batches, "micro-batch", "es");
  if (!can_be_listed(size, local, std::max<int64_t>(micro_batches, 1))) {
    Error error =
        bad(found + " through " + counted(local, "stage") + " on each of " + counted(size, "rank") +
                " are more than " + std::to_string(kMostActions) + " actions a run",
            run.key);
    const int64_t most =
        kMostActions / 3 / std::max<int64_t>(size, 1) / std::max<int64_t>(local, 1);
    if (most < 1) throw error.help(set_line(kSizeKey, "1"));
    // Whole rounds, whatever the schedule.
    throw error.help("set " + run.of(std::max(most / size, int64_t{1}) * std::min(size, most)));
  }
  if (runs_micro_batches(schedule, size, micro_batches)) return;
  if (schedule == PipelineSchedule::dual_pipe_v) {
    const int64_t fewest = 2 * size - 1;
    throw bad(name + " over " + counted(size, "rank") + " runs at least " + std::to_string(fewest) +
                  " micro-batches, found " + std::to_string(micro_batches),
              run.key)
        .help("set " + run.of(fewest))
        .help(set_line(kScheduleKey, "\"ZBVZeroBubble\""));
  }
  Error error =
      micro_batches < 1
          ? bad("a run needs at least 1 micro-batch, found " + std::to_string(micro_batches),
                run.key)
          : bad(name + " over " + counted(size, "rank") + " takes " + found + " in " +
                    counted(micro_batches / size, "round") +
                    " of equally many, which does not work out",
                run.key);
  // The nearest below and above; up to pp_size micro-batches are one round.
  int64_t below = std::max<int64_t>(micro_batches, 1), above = below;
  while (below > 1 && !runs_micro_batches(schedule, size, below)) --below;
  while (!runs_micro_batches(schedule, size, above)) ++above;
  std::vector<int64_t> nearest = {below, above};
  if (above - micro_batches < micro_batches - below) std::swap(nearest[0], nearest[1]);
  if (below == above) nearest.pop_back();
  for (int64_t number : nearest) error.help("set " + run.of(number));
  throw error;
}

std::optional<std::string> bubble_warning(const PipelinePlan& plan, const PipelineOptions& options,
                                          int64_t micro_batches, int64_t most_local,
                                          const RunSize& run) {
  const auto size = static_cast<int64_t>(plan.stages_of_rank.size()),
             local = static_cast<int64_t>(plan.stages_of_rank.front().size());
  const double bubble = plan.from_csv
                            ? simulate_pipeline(plan_actions(plan, options, micro_batches)).bubble
                            : run_of_schedule(plan.schedule, size, local, micro_batches)->bubble;
  if (bubble <= kMostBubble) return std::nullopt;
  std::string text = "the ranks of the pipeline idle " + percent(bubble) + " of a run of " +
                     counted(micro_batches, "micro-batch", "es");
  if (plan.from_csv) return text;
  std::string more;
  if (std::optional<int64_t> enough =
          enough_micro_batches(plan.schedule, size, local, micro_batches, bubble / 2))
    more = counted(*enough, "micro-batch", "es") + " (" + run.of(*enough) + ") make it " +
           percent(bubble_of(plan.schedule, size, local, *enough));
  const bool any_local = plan.schedule == PipelineSchedule::looped_bfs ||
                         plan.schedule == PipelineSchedule::interleaved_1f1b ||
                         plan.schedule == PipelineSchedule::interleaved_zero_bubble;
  // Twice as many halve it, or nearly so; of the others none will.
  most_local = any_local ? std::min(most_local, 4 * local) : 0;
  for (int64_t v = local + 1; v <= most_local && can_be_listed(size, v, micro_batches); ++v) {
    const double shorter = bubble_of(plan.schedule, size, v, micro_batches);
    if (shorter > bubble / 2) continue;
    more += (more.empty() ? "" : ", ") + counted(v, "stage") + " a rank " + percent(shorter);
    break;
  }
  return more.empty() ? text : text + "; " + more;
}

}  // namespace pipeline

}  // namespace meshwright
