// Pipeline stages: how layers become stages and stages are placed on ranks (semantics 11.1). Pure.
// The engine and the conformance kit ask for them; strategies do not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "meshwright/footprint.h"
#include "meshwright/outline.h"
#include "meshwright/sharding_plan.h"
#include "meshwright/shared_options.h"
#include "meshwright/tp_plan.h"

namespace meshwright {

enum class PipelineSchedule : uint8_t {
  gpipe,
  one_f_one_b,
  interleaved_1f1b,
  looped_bfs,
  interleaved_zero_bubble,
  zbv_zero_bubble,
  dual_pipe_v
};

// Any letter case; "interleaved_1f1b" and "looped_bfs" are aliases. Throws Error(bad_choice)
// listing the names.
MESHWRIGHT_API PipelineSchedule parse_schedule(std::string_view name);
MESHWRIGHT_API std::string_view schedule_name(PipelineSchedule schedule);
MESHWRIGHT_API bool is_multi_stage(PipelineSchedule schedule);  // several stages per rank

struct PipelineStage {
  int64_t index = 0, rank = 0;  // rank = pipeline coordinate that runs it
  int64_t first_layer = 0, layer_count = 0;
  std::vector<std::string> modules;  // top modules of the stage: model.embed_tokens,
                                     // model.layers.3, ..., model.norm, lm_head
  // Whether a stage before it has something to train: only then the gradient of its input goes
  // back.
  bool sends_gradient = true;
};

struct PipelinePlan {
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  std::vector<PipelineStage> stages;                 // in model order
  std::vector<std::vector<int64_t>> stages_of_rank;  // [pp]
  bool from_csv = false;              // placed by pp_schedule_csv; `schedule` is then only a name
  std::vector<std::string> warnings;  // ranks that idle
};

// Its schedule's name, or "a file of actions".
MESHWRIGHT_API std::string schedule_text(const PipelinePlan& plan);
// The stage that a parameter belongs to; what lies outside of all stages' modules goes with the
// first.
MESHWRIGHT_API int64_t stage_of(const PipelinePlan& plan, std::string_view parameter);
// The unit of what a stage has around its layers, where a rank has both ends.
MESHWRIGHT_API std::string root_of_stage(int64_t stage);
// Sets sends_gradient of all stages. `trainable`: the parameters of the whole model that train.
MESHWRIGHT_API void mark_gradients(PipelinePlan& plan, const std::vector<std::string>& trainable);

// Layers and stage placement alone; with module_fqns_per_model_part, names that end in a number are
// layers. Reads the file of actions when pp_schedule_csv is set. Throws Error(bad_pipeline) with
// the numbers and settings that work, Error(file_unreadable).
// `data_ranks`: where a run takes all samples of a step, the ranks of dp that share them; helps and
// warnings then speak of the global batch. 0: pp_batch_size was given.
MESHWRIGHT_API PipelinePlan plan_stages(int64_t layers, int64_t pp_size,
                                        const PipelineOptions& options, int64_t data_ranks = 0);
// The same with the modules of an outline; refuses models without a layer list.
MESHWRIGHT_API PipelinePlan plan_pipeline(const ModelOutline& outline, int64_t pp_size,
                                          const PipelineOptions& options, int64_t data_ranks = 0);
// What the stages of one pipeline coordinate keep of a model. Names stay global, and so do the
// counts (layers, heads). A tied head away from its embedding has a copy of its weight.
MESHWRIGHT_API ModelOutline stage_outline(const ModelOutline& outline, const PipelinePlan& plan,
                                          int64_t pp_rank);
// Whether a plan's styles cut activations along the sequence.
MESHWRIGHT_API bool cuts_sequence(const TpPlan& tp);
// Hidden states and their gradients between the stages of different ranks. Not part of the
// footprints above: the stages are the engine's, alike for every strategy.
MESHWRIGHT_API CommunicationSchedule pipeline_schedule(const ShardingRequest& request,
                                                       const PipelinePlan& plan);
// Samples of a data-parallel rank and step, and how many runs of the schedule take them.
MESHWRIGHT_API int64_t step_samples(const Workload& workload);
MESHWRIGHT_API int64_t pipeline_runs(const PipelineOptions& options, const Workload& workload);
// Checks that need no model: schedule, csv, batch sizes, with `diagnostics` collecting.
MESHWRIGHT_API void check_pipeline_options(const SharedOptions& shared, Diagnostics& diagnostics);

}  // namespace meshwright
