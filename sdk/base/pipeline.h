// Pipeline stages: how layers become stages and stages are placed on ranks (semantics 11.1). Pure.
// The engine and the conformance kit ask for them; strategies do not.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "meshwright/footprint.h"
#include "meshwright/outline.h"
#include "meshwright/sharding_plan.h"
#include "meshwright/tp_plan.h"
#include "sdk/base/shared_schemas.h"

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

// What each rank of a pipeline does, in which order, what it sends and receives between, and how
// long that takes. Pure: the plan draws it, the run does it.

struct PipelineAction {
  // A backward is whole, or split into the gradients of the input and, later, those of the weights.
  enum class Kind : char { forward = 'F', backward = 'B', input = 'I', weight = 'W' };
  Kind kind = Kind::forward;
  int64_t stage = 0, micro_batch = 0;
  bool paired = false;  // a forward that may overlap with the backward behind it

  bool operator==(const PipelineAction&) const = default;
};
using PipelineList = std::vector<PipelineAction>;  // of one rank, in order
using PipelineLists = std::vector<PipelineList>;   // [pp]

// "3F5": stage, kind, micro-batch.
MESHWRIGHT_API std::string action_name(const PipelineAction& action);
// A row of a file of actions: "0F0,(0F1;7B0)OVERLAP_F_B".
MESHWRIGHT_API std::string actions_row(const PipelineList& actions);

// Of a run of the schedule; 0 where its sizes do not work out, which check_pipeline_options() says,
// or where the batch is "auto" and nobody has said yet what that comes to.
MESHWRIGHT_API int64_t pipeline_micro_batches(const PipelineOptions& options);
// Whether the schedule can deal out so many micro-batches over `size` ranks.
MESHWRIGHT_API bool runs_micro_batches(PipelineSchedule schedule, int64_t size,
                                       int64_t micro_batches);
// The order of a schedule with `local` stages on each of `size` ranks. Throws Error(bad_pipeline)
// when it cannot deal them out.
MESHWRIGHT_API PipelineLists make_actions(PipelineSchedule schedule, int64_t size, int64_t local,
                                          int64_t micro_batches);
// Forwards alone, as many micro-batches at a time through all stages as there are ranks.
MESHWRIGHT_API PipelineLists make_forwards(const std::vector<std::vector<int64_t>>& stages_of_rank,
                                           int64_t micro_batches);
// The order in a file, a row a rank, checked so that a run of it ends. Without `micro_batches` the
// file says how many there are. Throws Error(file_unreadable), Error(bad_pipeline) with row and
// column.
MESHWRIGHT_API PipelineLists read_actions(const std::string& path, int64_t size,
                                          std::optional<int64_t> micro_batches = std::nullopt);
// The lists of a plan: of its file, or of its schedule.
MESHWRIGHT_API PipelineLists plan_actions(const PipelinePlan& plan, const PipelineOptions& options,
                                          int64_t micro_batches);

// Seconds, or any other unit, of one stage and micro-batch; a whole backward takes both.
struct PipelineTimes {
  double forward = 1, input = 1, weight = 1;
};

// What a rank does next: an action, or a message that belongs to one. A receive is posted where it
// stands; the action that uses it waits. A send does not wait for its use.
struct PipelineStep {
  enum class Kind : uint8_t { compute, send, receive };
  Kind kind = Kind::compute;
  PipelineAction action = {};  // itself; the one that made what is sent; the one that uses it
  int64_t peer = -1;           // the other rank of a message
  int64_t order = 0;           // of the action that it goes with among those of all ranks
};
struct PipelineSpan {
  PipelineAction action = {};
  double start = 0, end = 0;
};
// What a rank holds at the fullest moment of a run.
struct PipelinePeak {
  int64_t passes = 0;   // of one stage and one micro-batch, whose tensors wait for their backward
  int64_t waiting = 0;  // of these, those that have input gradients already and wait for the
                        // weights' (split backward)
  int64_t logits = 1;   // micro-batches whose logits wait on the rank that has the last stage
};
struct PipelineRun {
  std::vector<std::vector<PipelineStep>> steps;  // [pp]
  std::vector<std::vector<PipelineSpan>> spans;  // [pp], the actions alone
  std::vector<PipelinePeak> peaks;               // [pp]
  // [stage]: micro-batches in flight at most. As many buffers behind the stage, and for the
  // gradients that come back, never make a sender wait.
  std::vector<int64_t> slots;
  // [from][to]: how many messages a rank may be ahead of the oldest one to the same rank whose pass
  // is not over yet. A memory of so many, used again in turn and read in place until then, never
  // makes ranks wait in a circle.
  std::vector<std::vector<int64_t>> messages_ahead;
  double makespan = 0;
  double bubble = 0;  // the idle part of all ranks' time
};
// Goes round the ranks and takes the next action of each whose input exists; messages stand where
// the sender's action is taken, so that they arrive in order and nobody waits in a circle. `times`:
// of each stage, none: one unit each. `message`: from one rank to another, which neither waits for.
// Throws Error(bad_pipeline) naming what each rank waits for when no rank gets on.
MESHWRIGHT_API PipelineRun simulate_pipeline(const PipelineLists& lists,
                                             std::span<const PipelineTimes> times = {},
                                             double message = 0);

}  // namespace meshwright
