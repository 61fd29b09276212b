// Lists of pipeline actions: how many micro-batches a schedule can run, and what a list holds. Not
// public.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "pipeline_parts.h"
#include "sdk/base/pipeline_actions.h"

namespace meshwright::pipeline {

// More in all ranks' lists together are taken for a mistake.
inline constexpr int64_t kMostActions = int64_t{1} << 20;
// The key that says how many micro-batches a run has, and how many of its samples each is.
struct RunSize {
  std::string_view key = kBatchKey;
  int64_t samples = 1;
  std::string of(int64_t micro_batches) const {  // key = value
    return std::string(key) + " = " + std::to_string(micro_batches * samples);
  }
};
RunSize run_size(const PipelineOptions& options, int64_t data_ranks);

bool can_be_listed(int64_t size, int64_t local, int64_t micro_batches);

// Throws Error(bad_pipeline) when the schedule cannot deal them out, or when the lists would be too
// long, with the nearest numbers that work.
void check_micro_batches(PipelineSchedule schedule, int64_t size, int64_t local,
                         int64_t micro_batches, const RunSize& run = {});

// How an error calls the lists, and what it adds to an action of one.
struct ListNames {
  std::string lists = "the lists of actions";
  std::function<std::string(size_t rank, size_t index)> place = {};
};
// simulate_pipeline() with errors that say where the lists come from.
PipelineRun run_lists(const PipelineLists& lists, std::span<const PipelineTimes> times,
                      const ListNames& names);
// A run of lists that a schedule makes, of actions of one length each. The last one is kept: the
// plans of all ranks of a pipeline ask for the same, each several times.
std::shared_ptr<const PipelineRun> run_of_schedule(PipelineSchedule schedule, int64_t size,
                                                   int64_t local, int64_t micro_batches);

// More than a quarter of the ranks' time idle: a sentence that says so, and which number of
// micro-batches or stages a rank halves it. `most_local`: as many stages as a rank can have.
std::optional<std::string> bubble_warning(const PipelinePlan& plan, const PipelineOptions& options,
                                          int64_t micro_batches, int64_t most_local,
                                          const RunSize& run);

}  // namespace meshwright::pipeline
