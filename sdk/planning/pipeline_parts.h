// Pipeline stages given in full instead of by a count, as lists of module names; and what errors
// about pipelines share. Not public.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/error.h"
#include "sdk/base/pipeline.h"

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

}  // namespace meshwright::pipeline
