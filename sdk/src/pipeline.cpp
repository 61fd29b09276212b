#include "meshwright/pipeline.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "meshwright/error.h"
#include "pipeline_parts.h"
#include "text.h"

namespace meshwright {
namespace {

constexpr const char* kSchedule = "distributed.pipeline.pp_schedule";
constexpr const char* kScheduleCsv = "distributed.pipeline.pp_schedule_csv";
constexpr const char* kBatch = "distributed.pipeline.pp_batch_size";
constexpr const char* kMicrobatch = "distributed.pipeline.pp_microbatch_size";
constexpr const char* kLayersPerStage = "distributed.pipeline.layers_per_stage";
constexpr const char* kRound = "distributed.pipeline.round_virtual_stages_to_pp_multiple";
constexpr const char* kSize = "distributed.pp_size";

struct ScheduleName {
  PipelineSchedule schedule;
  std::string_view name;
  std::string_view alias;  // "" = none
};

constexpr ScheduleName kSchedules[] = {
    {PipelineSchedule::gpipe, "GPipe", ""},
    {PipelineSchedule::one_f_one_b, "1F1B", ""},
    {PipelineSchedule::interleaved_1f1b, "Interleaved1F1B", "interleaved_1f1b"},
    {PipelineSchedule::looped_bfs, "LoopedBFS", "looped_bfs"},
    {PipelineSchedule::interleaved_zero_bubble, "InterleavedZeroBubble", ""},
    {PipelineSchedule::zbv_zero_bubble, "ZBVZeroBubble", ""},
    {PipelineSchedule::dual_pipe_v, "DualPipeV", ""},
};

// Names that other programs' documentation gives but that none of them runs, and what their readers were after.
constexpr std::pair<std::string_view, std::string_view> kNeverSchedules[] = {
    {"dfs", "Interleaved1F1B"}, {"v_schedule", "ZBVZeroBubble"}, {"zero_bubble", "InterleavedZeroBubble"}};

std::string plural(int64_t count, const std::string& word) { return std::to_string(count) + " " + word + (count == 1 ? "" : "s"); }

std::string set_line(std::string_view key, const std::string& value) { return "set " + std::string(key) + " = " + value; }

bool is_v_placed(PipelineSchedule schedule) {
  return schedule == PipelineSchedule::zbv_zero_bubble || schedule == PipelineSchedule::dual_pipe_v;
}

// How stages are counted: from the schedule by name, from explicit parts, or from a file of actions.
struct StageCount {
  int64_t stages = 0;
  std::string problem;  // "" = it works out
  std::string_view key;
};

StageCount count_stages(int64_t layers, int64_t pp, PipelineSchedule schedule, std::optional<int64_t> layers_per_stage,
                        PipelineOptions::Round round) {
  bool multi = is_multi_stage(schedule);
  std::string name(schedule_name(schedule));
  StageCount out;
  out.stages = pp * (multi ? 2 : 1);
  if (layers_per_stage) {
    int64_t each = *layers_per_stage;
    if (each < 1) return {0, "layers_per_stage = " + std::to_string(each) + " is below 1", kLayersPerStage};
    int64_t wanted = layers / each + (layers % each != 0);
    out.stages = wanted;
    std::string split = plural(layers, "layer") + " at layers_per_stage = " + std::to_string(each) + " make " + plural(wanted, "stage");
    if (wanted % pp != 0) {
      if (round == PipelineOptions::Round::none)
        return {wanted, split + ", which is not a multiple of pp_size " + std::to_string(pp), kLayersPerStage};
      out.stages = (wanted / pp + (round == PipelineOptions::Round::up ? 1 : 0)) * pp;
      split += ", rounded " + std::string(round == PipelineOptions::Round::up ? "up" : "down") + " to " + std::to_string(out.stages);
    }
    if (out.stages < 1) return {out.stages, split + ": no stage is left for pp_size " + std::to_string(pp), kLayersPerStage};
    int64_t local = out.stages / pp;
    std::string found = split + ", " + std::to_string(local) + " a rank over pp_size " + std::to_string(pp) + ", but " + name + " runs ";
    if (!multi && local != 1) return {out.stages, found + "exactly 1", kLayersPerStage};
    if (multi && local < 2) return {out.stages, found + (is_v_placed(schedule) ? "exactly 2" : "at least 2"), kLayersPerStage};
    if (is_v_placed(schedule) && local != 2) return {out.stages, found + "exactly 2", kLayersPerStage};
  }
  if (out.stages > layers)
    return {out.stages,
            name + " over pp_size " + std::to_string(pp) + " has " + plural(out.stages, "stage") + ", more than the " +
                plural(layers, "layer"),
            kSize};
  return out;
}

// Up to three changes of one setting, or of the schedule, after which the count works out.
std::vector<std::string> stage_helps(int64_t layers, int64_t pp, PipelineSchedule schedule, const PipelineOptions& options) {
  using Round = PipelineOptions::Round;
  std::vector<std::string> helps;
  auto works = [&](int64_t size, PipelineSchedule s, std::optional<int64_t> lps, Round round) {
    return count_stages(layers, size, s, lps, round).problem.empty();
  };
  if (options.layers_per_stage) {
    int64_t given = *options.layers_per_stage;
    for (auto [round, word] : {std::pair(Round::up, "\"up\""), std::pair(Round::down, "\"down\"")})
      if (options.round == Round::none && works(pp, schedule, given, round)) helps.push_back(set_line(kRound, word));
    // The nearest value below or above. Stages shrink as it grows, so values beyond `layers` change nothing.
    for (int64_t distance = 1; distance <= std::max(layers, given) && helps.size() < 3; ++distance) {
      bool found = false;
      for (int64_t candidate : {given - distance, given + distance})
        if (!found && candidate >= 1 && candidate <= layers && works(pp, schedule, candidate, options.round)) {
          helps.push_back(set_line(kLayersPerStage, std::to_string(candidate)));
          found = true;
        }
      if (found) break;
    }
    for (PipelineSchedule other : {PipelineSchedule::interleaved_1f1b, PipelineSchedule::one_f_one_b})
      if (helps.size() < 3 && other != schedule && works(pp, other, given, options.round))
        helps.push_back(set_line(kSchedule, text::quote(schedule_name(other))));
    if (helps.size() < 3 && works(pp, schedule, std::nullopt, Round::none))
      helps.push_back("leave out " + std::string(kLayersPerStage) + ": " + plural(is_multi_stage(schedule) ? 2 : 1, "stage") + " a rank");
  } else if (is_multi_stage(schedule) && works(pp, PipelineSchedule::one_f_one_b, std::nullopt, Round::none)) {
    helps.push_back(set_line(kSchedule, "\"1F1B\"") + ": one stage a rank");
  }
  // A divisor of pp_size leaves the other sizes valid.
  for (int64_t size = pp - 1; size >= 1 && helps.size() < 3; --size)
    if (pp % size == 0 && (size == 1 || works(size, schedule, options.layers_per_stage, options.round))) {
      helps.push_back(set_line(kSize, std::to_string(size)));
      break;
    }
  return helps;
}

std::vector<std::vector<int64_t>> place(int64_t stages, int64_t pp, bool v) {
  std::vector<std::vector<int64_t>> out(static_cast<size_t>(pp));
  for (int64_t s = 0; s < stages; ++s) {
    int64_t rank = s % pp;
    if (v && s >= pp) rank = stages - 1 - s;
    out[static_cast<size_t>(rank)].push_back(s);
  }
  return out;
}

// Fills rank numbers from the placement and warns where a rank would idle.
void finish(PipelinePlan& plan, const PipelineOptions& options) {
  size_t most = 0;
  for (size_t rank = 0; rank < plan.stages_of_rank.size(); ++rank) {
    most = std::max(most, plan.stages_of_rank[rank].size());
    for (int64_t s : plan.stages_of_rank[rank]) plan.stages[static_cast<size_t>(s)].rank = static_cast<int64_t>(rank);
  }
  int64_t micro = options.microbatch_size > 0 ? options.batch_size / options.microbatch_size : 0;
  if (micro < static_cast<int64_t>(most))
    plan.warnings.push_back("pp_batch_size " + std::to_string(options.batch_size) + " / pp_microbatch_size " +
                            std::to_string(options.microbatch_size) + " gives " + plural(micro, "micro-batch") + (micro == 1 ? "" : "es").substr(0, 0) +
                            ", fewer than the " + plural(static_cast<int64_t>(most), "stage") + " of a rank: ranks will idle");
}

}  // namespace
}  // namespace meshwright
