// Pipeline stages given in full instead of by a count, as lists of module names; and what errors
// about pipelines share. Not public.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/error.h"
#include "sdk/base/pipeline.h"
#include "sdk/base/shared_schemas.h"

namespace meshwright::pipeline {

inline constexpr std::string_view kScheduleKey = "distributed.pipeline.pp_schedule";
inline constexpr std::string_view kCsvKey = "distributed.pipeline.pp_schedule_csv";
inline constexpr std::string_view kPartsKey = "distributed.pipeline.module_fqns_per_model_part";
inline constexpr std::string_view kLayersPerStageKey = "distributed.pipeline.layers_per_stage";
inline constexpr std::string_view kRoundKey =
    "distributed.pipeline.round_virtual_stages_to_pp_multiple";
inline constexpr std::string_view kBatchKey = "distributed.pipeline.pp_batch_size";
inline constexpr std::string_view kGlobalKey = "step_scheduler.global_batch_size";
inline constexpr std::string_view kMicrobatchKey = "distributed.pipeline.pp_microbatch_size";
inline constexpr std::string_view kFirstLessKey = "distributed.pipeline.first_stage_less_layers";
inline constexpr std::string_view kLastLessKey = "distributed.pipeline.last_stage_less_layers";
inline constexpr std::string_view kSizeKey = "distributed.pp_size";

Error bad(std::string message, std::string_view key);
// "1 stage", "3 stages", "2 micro-batches".
std::string counted(int64_t count, std::string_view word, std::string_view plural_ending = "s");
std::string set_line(std::string_view key, std::string_view value);
// Helps that stand for whatever is wrong with explicit parts, or with a file of actions.
std::string leave_out_parts();
std::string leave_out_csv();

// The layer number of "model.layers.7"; -1 when the name does not end in a number.
int64_t layer_number(std::string_view module);

// The modules a pipeline can deal out: the items of the layer list, and what stands around it.
struct Parts {
  std::vector<std::string> layers;                   // in order
  std::vector<std::string> first, last, everywhere;  // tops around the list by where they go
};
// Throws Error(bad_pipeline) when the model has no layer list.
Parts split_model(const ModelOutline& outline);
// Checks names of explicit parts against the model: each exists, each that holds parameters stands
// exactly once.
void check_parts(const ModelOutline& outline, const Parts& parts, const StringTable& given);

// Lists of pipeline actions: how many micro-batches a schedule can run, and what a list holds. Not
// public.

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
PipelineRun run_lists(const PipelineLists& lists, const ListNames& names);
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
