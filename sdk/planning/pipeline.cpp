// How layers become stages. Long because a refusal tries every other way of dealing them.
#include "sdk/base/pipeline.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "pipeline_parts.h"
#include "sdk/base/head_of.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/base/text.h"

namespace meshwright {
namespace {

using namespace pipeline;
using Round = PipelineOptions::Round;

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

// Names the original documents but refuses, and what their readers were after.
constexpr std::pair<std::string_view, std::string_view> kMisnomers[] = {
    {"dfs", "Interleaved1F1B"},
    {"v_schedule", "ZBVZeroBubble"},
    {"zero_bubble", "InterleavedZeroBubble"}};

// Two stages a rank, the first and the last of what is left: rank r runs (r, n-1-r).
bool is_v_placed(PipelineSchedule schedule) {
  return schedule == PipelineSchedule::zbv_zero_bubble || schedule == PipelineSchedule::dual_pipe_v;
}

const char* stages_wanted(PipelineSchedule schedule) {
  if (is_v_placed(schedule)) return "exactly 2";
  return is_multi_stage(schedule) ? "at least 2" : "exactly 1";
}

bool local_count_fits(PipelineSchedule schedule, int64_t local) {
  if (is_v_placed(schedule)) return local == 2;
  return is_multi_stage(schedule) ? local >= 2 : local == 1;
}

struct StageCount {
  int64_t stages = 0;
  std::string problem;  // "" = it works out
  std::string_view key;
};

StageCount count_stages(int64_t layers, int64_t pp, PipelineSchedule schedule,
                        std::optional<int64_t> layers_per_stage, Round round) {
  StageCount out;
  std::string name(schedule_name(schedule)), over = " over pp_size " + std::to_string(pp);
  out.stages = is_multi_stage(schedule) ? 2 * pp : pp;
  out.key = kSizeKey;
  std::string origin = name + over + " has " + counted(out.stages, "stage");
  if (layers_per_stage) {
    out.key = kLayersPerStageKey;
    int64_t each = *layers_per_stage;
    if (each < 1) {
      out.problem =
          "layers_per_stage = " + std::to_string(each) + ", but a stage holds at least 1 layer";
      return out;
    }
    out.stages = layers / each + (layers % each != 0);
    origin = counted(layers, "layer") + " at layers_per_stage " + std::to_string(each) + " make " +
             counted(out.stages, "stage") + over;
    if (out.stages % pp != 0) {
      if (round == Round::none) {
        out.problem = origin + ", not a multiple of it";
        return out;
      }
      out.stages = (out.stages / pp + (round == Round::up ? 1 : 0)) * pp;
      origin += std::string(", rounded ") + (round == Round::up ? "up" : "down") + " to " +
                std::to_string(out.stages) + " for pp_size " + std::to_string(pp);
    }
    if (int64_t local = out.stages / pp; !local_count_fits(schedule, local)) {
      out.problem = origin + ": " + std::to_string(local) + " a rank, but " + name + " runs " +
                    stages_wanted(schedule);
      return out;
    }
  }
  if (out.stages > layers)
    out.problem = origin + ", more than the " + counted(layers, "layer") + " of the model";
  return out;
}

// Up to three changes of one setting after which the count works out.
std::vector<std::string> stage_helps(int64_t layers, int64_t pp, PipelineSchedule schedule,
                                     const PipelineOptions& options) {
  std::vector<std::string> helps;
  const std::optional<int64_t>& given = options.layers_per_stage;
  auto works = [&](int64_t size, PipelineSchedule s, std::optional<int64_t> each, Round round) {
    return count_stages(layers, size, s, each, round).problem.empty();
  };
  auto add = [&](bool good, std::string line) {
    if (good && helps.size() < 3) helps.push_back(std::move(line));
  };
  if (given) {
    for (auto [round, word] : {std::pair(Round::up, "\"up\""), std::pair(Round::down, "\"down\"")})
      add(options.round != round && works(pp, schedule, given, round), set_line(kRoundKey, word));
    // The working value nearest to the given one; all values above `layers` act alike.
    std::optional<int64_t> nearest;
    int64_t wanted = std::clamp<int64_t>(*given, 1, std::max<int64_t>(layers, 1));
    for (int64_t distance = 0; distance <= layers && !nearest; ++distance)
      for (int64_t each : {wanted - distance, wanted + distance})
        if (!nearest && each >= 1 && each <= layers && each != *given &&
            works(pp, schedule, each, options.round))
          nearest = each;
    if (nearest) add(true, set_line(kLayersPerStageKey, std::to_string(*nearest)));
  }
  for (PipelineSchedule other : {PipelineSchedule::interleaved_1f1b, PipelineSchedule::one_f_one_b})
    add(other != schedule && works(pp, other, given, options.round),
        set_line(kScheduleKey, text::quote(schedule_name(other))));
  // A divisor of pp_size leaves the other sizes valid.
  for (int64_t size = std::min(pp / 2, layers); size > 1; --size)
    if (pp % size == 0 && works(size, schedule, given, options.round)) {
      add(true, set_line(kSizeKey, std::to_string(size)));
      break;
    }
  add(true, set_line(kSizeKey, "1"));
  return helps;
}

std::vector<std::vector<int64_t>> place(int64_t stages, int64_t pp, bool v) {
  std::vector<std::vector<int64_t>> out(static_cast<size_t>(pp));
  for (int64_t s = 0; s < stages; ++s)
    out[static_cast<size_t>(v && s >= pp ? stages - 1 - s : s % pp)].push_back(s);
  return out;
}

// `most`: layers of a stage that an end can have fewer; `even`: those of a stage without that.
void check_ends(const PipelineOptions& options, int64_t most, int64_t even) {
  for (auto [key, end, less] : {std::tuple(kFirstLessKey, "first", options.first_stage_less_layers),
                                std::tuple(kLastLessKey, "last", options.last_stage_less_layers)})
    if (less > most) {
      Error error = bad(std::string("the ") + end + " stage is to have " + counted(less, "layer") +
                            " fewer than the others, which have " + std::to_string(most),
                        key);
      if (even / 2 > 0) error.help(set_line(key, std::to_string(even / 2)));
      throw error.help(set_line(key, "0"));
    }
}

// As if the ends had layers more, which their embedding and head take the place of (torchtitan).
int64_t dealt_layers(int64_t layers, const PipelineOptions& options) {
  return layers + options.first_stage_less_layers + options.last_stage_less_layers;
}

void deal_evenly(PipelinePlan& plan, int64_t stages, int64_t layers,
                 const PipelineOptions& options) {
  if (stages < 1) return;
  const int64_t dealt = dealt_layers(layers, options), fewest = dealt / stages;
  check_ends(options, fewest, layers / stages);
  int64_t next = 0;
  for (int64_t s = 0; s < stages; ++s) {
    PipelineStage stage{.index = s,
                        .first_layer = next,
                        .layer_count = fewest + (s < dealt % stages ? 1 : 0),
                        .modules = {}};
    if (s == 0) stage.layer_count -= options.first_stage_less_layers;
    if (s + 1 == stages) stage.layer_count -= options.last_stage_less_layers;
    next += stage.layer_count;
    plan.stages.push_back(std::move(stage));
  }
}

void deal_parts(PipelinePlan& plan, int64_t layers, int64_t pp, const StringTable& parts) {
  auto count = static_cast<int64_t>(parts.size());
  std::string schedule(schedule_name(plan.schedule));
  if (count % pp != 0 || !local_count_fits(plan.schedule, count / pp)) {
    Error error = bad("module_fqns_per_model_part has " + counted(count, "part") + " for pp_size " +
                          std::to_string(pp) + ", but " + schedule + " runs " +
                          stages_wanted(plan.schedule) + " a rank",
                      kPartsKey);
    for (PipelineSchedule other :
         {PipelineSchedule::one_f_one_b, PipelineSchedule::interleaved_1f1b})
      if (count % pp == 0 && local_count_fits(other, count / pp))
        error.help(set_line(kScheduleKey, text::quote(schedule_name(other))));
    error.help("give " + std::to_string(is_multi_stage(plan.schedule) ? 2 * pp : pp) + " parts");
    throw error.help(leave_out_parts());
  }
  int64_t next = 0;
  for (int64_t s = 0; s < count; ++s) {
    PipelineStage stage{.index = s, .first_layer = next, .modules = {}};
    for (const std::string& name : parts[static_cast<size_t>(s)]) {
      stage.modules.push_back(name);
      int64_t layer = layer_number(name);
      if (layer < 0) continue;
      if (layer != next)
        throw bad("module_fqns_per_model_part names " + name + " where layer " +
                      std::to_string(next) +
                      " comes next: every layer stands exactly once, in order",
                  kPartsKey)
            .help("give the layers 0 to " + std::to_string(layers - 1) + " in order")
            .help(leave_out_parts());
      ++next;
      ++stage.layer_count;
    }
    plan.stages.push_back(std::move(stage));
  }
  if (next != layers)
    throw bad("module_fqns_per_model_part holds " + counted(next, "layer") + " of " +
                  std::to_string(layers),
              kPartsKey)
        .help("give the layers 0 to " + std::to_string(layers - 1) + " in order")
        .help(leave_out_parts());
}

// The lists of pp_schedule_csv, held against the number of micro-batches where that is known.
PipelineLists read_csv(const PipelineOptions& options, int64_t pp) {
  const int64_t micro_batches = pipeline_micro_batches(options);
  return read_actions(options.schedule_csv, pp,
                      micro_batches > 0 ? std::optional(micro_batches) : std::nullopt);
}

void deal_csv(PipelinePlan& plan, int64_t layers, int64_t pp, const PipelineOptions& options) {
  plan.from_csv = true;
  int64_t stages = 0;
  for (const PipelineList& list : read_csv(options, pp)) {
    std::set<int64_t> local;
    for (const PipelineAction& action : list) local.insert(action.stage);
    plan.stages_of_rank.emplace_back(local.begin(), local.end());
    stages += static_cast<int64_t>(local.size());
  }
  if (!options.module_fqns_per_model_part.empty()) return;  // counted by the caller
  if (stages > layers)
    throw bad("the actions in " + options.schedule_csv + " use " + counted(stages, "stage") +
                  ", more than the " + counted(layers, "layer") + " of the model",
              kCsvKey)
        .help("use a file of actions with at most " + counted(layers, "stage"))
        .help(leave_out_csv());
  if (options.layers_per_stage) {
    int64_t each = std::max<int64_t>(*options.layers_per_stage, 1);
    int64_t wanted = layers / each + (layers % each != 0);
    if (wanted != stages)
      throw bad("the actions in " + options.schedule_csv + " use " + counted(stages, "stage") +
                    ", but " + counted(layers, "layer") + " at layers_per_stage " +
                    std::to_string(each) + " make " + std::to_string(wanted),
                kLayersPerStageKey)
          .help("leave out " + std::string(kLayersPerStageKey));
  }
  deal_evenly(plan, stages, layers, options);
}

}  // namespace

int64_t stage_of(const PipelinePlan& plan, std::string_view parameter) {
  for (const PipelineStage& stage : plan.stages)
    for (const std::string& module : stage.modules)
      if (text::lies_in(parameter, module)) return stage.index;
  return 0;
}

std::string schedule_text(const PipelinePlan& plan) {
  return plan.from_csv ? "a file of actions" : std::string(schedule_name(plan.schedule));
}

std::string root_of_stage(int64_t stage) { return "root of stage " + std::to_string(stage); }

void mark_gradients(PipelinePlan& plan, const std::vector<std::string>& trainable) {
  auto first = static_cast<int64_t>(plan.stages.size());  // stage with something to train
  for (const std::string& parameter : trainable) first = std::min(first, stage_of(plan, parameter));
  for (PipelineStage& stage : plan.stages) stage.sends_gradient = stage.index > first;
}

PipelineSchedule parse_schedule(std::string_view name) {
  std::string wanted = text::normal(name);
  std::vector<std::string> names;
  for (const ScheduleName& s : kSchedules) {
    if (wanted == text::normal(s.name) || (!s.alias.empty() && wanted == s.alias))
      return s.schedule;
    names.emplace_back(s.name);
  }
  Error error(ErrorCode::bad_choice, "no pipeline schedule is called \"" + std::string(name) +
                                         "\"; there are " + text::join(names, ", "));
  error.key(std::string(kScheduleKey));
  std::string near = nearest_name(name, names);
  for (auto [misnomer, meant] : kMisnomers)
    if (wanted == misnomer) near = meant;
  if (!near.empty()) error.help(set_line(kScheduleKey, text::quote(near)));
  for (std::string_view common : {"1F1B", "Interleaved1F1B"})
    if (common != near) error.help(set_line(kScheduleKey, text::quote(common)));
  throw error;
}

std::string_view schedule_name(PipelineSchedule schedule) {
  for (const ScheduleName& s : kSchedules)
    if (s.schedule == schedule) return s.name;
  return "";
}

bool is_multi_stage(PipelineSchedule schedule) {
  return schedule != PipelineSchedule::gpipe && schedule != PipelineSchedule::one_f_one_b;
}

PipelinePlan plan_stages(int64_t layers, int64_t pp_size, const PipelineOptions& options,
                         int64_t data_ranks) {
  if (pp_size < 1)
    throw bad("pp_size = " + std::to_string(pp_size) + " is below 1", kSizeKey)
        .help(set_line(kSizeKey, "1"));
  check_ends(options, layers, layers / pp_size);  // before anything is added to them
  PipelinePlan plan;
  bool csv = !options.schedule_csv.empty();
  // A file of actions needs no schedule; one that is named beside it must still exist.
  plan.schedule = csv && options.schedule.empty() ? PipelineSchedule::interleaved_1f1b
                                                  : parse_schedule(options.schedule);
  const StringTable& parts = options.module_fqns_per_model_part;
  if (csv) {
    deal_csv(plan, layers, pp_size, options);
    if (!parts.empty()) {
      size_t stages = 0;
      for (const auto& local : plan.stages_of_rank) stages += local.size();
      if (stages != parts.size())
        throw bad("module_fqns_per_model_part has " +
                      counted(static_cast<int64_t>(parts.size()), "part") +
                      ", but the actions in " + options.schedule_csv + " use " +
                      counted(static_cast<int64_t>(stages), "stage"),
                  kPartsKey)
            .help("give " + std::to_string(stages) + " parts")
            .help(leave_out_parts());
    }
  }
  if (!parts.empty()) {
    deal_parts(plan, layers, pp_size, parts);
  } else if (!csv) {
    StageCount count = count_stages(dealt_layers(layers, options), pp_size, plan.schedule,
                                    options.layers_per_stage, options.round);
    if (!count.problem.empty()) {
      Error error = bad(count.problem, count.key);
      for (const std::string& help :
           stage_helps(dealt_layers(layers, options), pp_size, plan.schedule, options))
        error.help(help);
      throw error;
    }
    deal_evenly(plan, count.stages, layers, options);
  }
  if (!csv)
    plan.stages_of_rank =
        place(static_cast<int64_t>(plan.stages.size()), pp_size, is_v_placed(plan.schedule));

  int64_t most = 0;
  for (size_t rank = 0; rank < plan.stages_of_rank.size(); ++rank) {
    most = std::max(most, static_cast<int64_t>(plan.stages_of_rank[rank].size()));
    for (int64_t s : plan.stages_of_rank[rank])
      plan.stages[static_cast<size_t>(s)].rank = static_cast<int64_t>(rank);
  }
  const int64_t micro = pipeline_micro_batches(options);
  if (!csv && micro > 0 && pp_size > 1)
    check_micro_batches(plan.schedule, pp_size, most, micro, run_size(options, data_ranks));
  if (options.batch_size && micro < most)
    plan.warnings.push_back("pp_batch_size " + std::to_string(options.batch_size.value_or(0)) +
                            " at pp_microbatch_size " + std::to_string(options.microbatch_size) +
                            " makes " + counted(micro, "micro-batch", "es") + ", fewer than the " +
                            counted(most, "stage") + " of a rank: ranks will wait for each other");
  return plan;
}

PipelinePlan plan_pipeline(const ModelOutline& outline, int64_t pp_size,
                           const PipelineOptions& options, int64_t data_ranks) {
  Parts parts = split_model(outline);
  const StringTable& given = options.module_fqns_per_model_part;
  if (!given.empty()) check_parts(outline, parts, given);
  PipelinePlan plan =
      plan_stages(static_cast<int64_t>(parts.layers.size()), pp_size, options, data_ranks);
  auto append = [](PipelineStage& stage, const std::vector<std::string>& names) {
    for (const std::string& name : names)
      if (std::find(stage.modules.begin(), stage.modules.end(), name) == stage.modules.end())
        stage.modules.push_back(name);
  };
  if (given.empty()) {
    for (PipelineStage& stage : plan.stages) {
      if (stage.index == 0) append(stage, parts.first);
      auto begin = parts.layers.begin() + stage.first_layer;
      stage.modules.insert(stage.modules.end(), begin, begin + stage.layer_count);
    }
    append(plan.stages.back(), parts.last);
  }
  for (PipelineStage& stage : plan.stages) append(stage, parts.everywhere);
  std::vector<std::string> trainable;
  for (const ParameterOutline& p : outline.parameters)
    if (p.trainable) trainable.push_back(p.name);
  mark_gradients(plan, trainable);
  if (const int64_t micro = pipeline_micro_batches(options); micro > 0 && pp_size > 1)
    if (std::optional<std::string> idle = bubble_warning(
            plan, options, micro, static_cast<int64_t>(parts.layers.size()) / pp_size,
            run_size(options, data_ranks)))
      plan.warnings.push_back(std::move(*idle));
  return plan;
}

namespace {

// A head that shares the embedding's weight has a copy of it where the two are on different ranks.
void untie(const ModelOutline& whole, const PipelinePlan& plan, int64_t pp_rank,
           ModelOutline& out) {
  const int64_t first = plan.stages.front().rank, last = plan.stages.back().rank;
  if (!whole.tied_embeddings || first == last) return;
  out.tied_embeddings = false;
  if (pp_rank != last) return;
  const ModuleOutline* head = head_of(out);
  for (const ParameterOutline& p : whole.parameters) {
    const ModuleOutline* owner = whole.find_module(module_of(p.name));
    if (head == nullptr || owner == nullptr || owner->kind != ModuleKind::embedding) continue;
    ParameterOutline copy = p;
    copy.name = head->name + ".weight";
    copy.copy_of = p.name;
    copy.stage = plan.stages.back().index;
    out.parameters.push_back(std::move(copy));
    return;
  }
}

}  // namespace

ModelOutline stage_outline(const ModelOutline& outline, const PipelinePlan& plan, int64_t pp_rank) {
  constexpr int64_t kOthers = -1, kNobodys = -2;
  std::unordered_map<std::string_view, int64_t> stage_of_part;  // mine: the stage
  for (const PipelineStage& stage : plan.stages)
    for (const std::string& name : stage.modules) {
      int64_t& is = stage_of_part.try_emplace(name, kOthers).first->second;
      if (stage.rank == pp_rank && is == kOthers) is = stage.index;
    }
  // What stands directly in a module above the stages' parts goes with the first stage.
  const bool holds_first = !plan.stages.empty() && plan.stages.front().rank == pp_rank;
  // Of the part that a name lies in, if any.
  auto stage_of_name = [&](std::string_view name) {
    for (;;) {
      if (const auto part = stage_of_part.find(name); part != stage_of_part.end())
        return part->second;
      const size_t dot = name.rfind('.');
      if (dot == std::string_view::npos) return kNobodys;
      name = name.substr(0, dot);
    }
  };
  ModelOutline out = outline;
  std::erase_if(out.modules,
                [&](const ModuleOutline& module) { return stage_of_name(module.name) == kOthers; });
  auto end = out.parameters.begin();
  for (ParameterOutline& p : out.parameters) {
    const int64_t stage = stage_of_name(module_of(p.name));
    if (stage == kOthers || (stage == kNobodys && !holds_first)) continue;
    if (stage >= 0) p.stage = stage;
    if (&*end != &p) *end = std::move(p);
    ++end;
  }
  out.parameters.erase(end, out.parameters.end());
  out.stages = std::max<int64_t>(static_cast<int64_t>(plan.stages.size()), 1);
  untie(outline, plan, pp_rank, out);
  return out;
}

void check_pipeline_options(const SharedOptions& shared, Diagnostics& diagnostics) {
  if (shared.sizes.pp <= 1) return;  // the table is inert
  const PipelineOptions& options = shared.pipeline;
  if (options.schedule.empty() && options.schedule_csv.empty()) {
    Error error(ErrorCode::missing_key,
                "pp_size is " + std::to_string(shared.sizes.pp) +
                    ", but there is neither a pp_schedule nor a pp_schedule_csv");
    diagnostics.add(error.key(std::string(kScheduleKey))
                        .help(set_line(kScheduleKey, "\"1F1B\""))
                        .help(set_line(kScheduleKey, "\"Interleaved1F1B\"")));
  }
  if (options.scale_grads_in_schedule)
    diagnostics.add(
        Error(ErrorCode::option_refused,
              "scale_grads_in_schedule = true, but gradients are those of the mean over "
              "all targets of a step, which a division by the number of micro-batches "
              "would make too small")
            .key("distributed.pipeline.scale_grads_in_schedule")
            .help("leave out distributed.pipeline.scale_grads_in_schedule"));
  try {
    if (!options.schedule.empty()) parse_schedule(options.schedule);
  } catch (const Error& error) {
    diagnostics.add(error);
  }
  try {
    if (!options.schedule_csv.empty()) read_csv(options, shared.sizes.pp);
  } catch (const Error& error) {
    diagnostics.add(error);
  }
  int64_t micro = options.microbatch_size, batch = options.batch_size.value_or(micro);
  if (batch < 1 || micro < 1 || batch % micro != 0) {
    // A rule between two keys of the file: it holds whatever the world and the model are.
    Error error(ErrorCode::conflict, "pp_batch_size " + std::to_string(batch) +
                                         " is not a multiple of pp_microbatch_size " +
                                         std::to_string(micro));
    error.key(std::string(kBatchKey));
    if (batch < 1 || micro < 1) {
      error.help(set_line(kBatchKey, "1") + " and " + set_line(kMicrobatchKey, "1").substr(4));
    } else {
      int64_t up = 0;
      if (!__builtin_mul_overflow(batch / micro + 1, micro, &up))
        error.help(set_line(kBatchKey, std::to_string(up)));
      int64_t divisor = std::min(micro, batch);
      while (batch % divisor != 0) --divisor;
      error.help(set_line(kMicrobatchKey, std::to_string(divisor)));
    }
    diagnostics.add(error);
  }
}

}  // namespace meshwright
