#include "pipeline_parts.h"
#include "sdk/base/shared_schemas.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "sdk/base/text.h"

namespace meshwright::pipeline {

Error bad(std::string message, std::string_view key) {
  return Error(ErrorCode::bad_pipeline, std::move(message)).key(std::string(key));
}

std::string counted(int64_t count, std::string_view word, std::string_view plural_ending) {
  return std::to_string(count) + " " + std::string(word) +
         std::string(count == 1 ? std::string_view() : plural_ending);
}

std::string set_line(std::string_view key, std::string_view value) {
  return "set " + std::string(key) + " = " + std::string(value);
}

std::string leave_out_parts() {
  return "leave out " + std::string(kPartsKey) + " and let the layers be dealt out evenly";
}

std::string leave_out_csv() {
  return "leave out " + std::string(kCsvKey) + " and set " + std::string(kScheduleKey) +
         " = \"1F1B\"";
}

int64_t layer_number(std::string_view module) {
  size_t dot = module.rfind('.');
  std::string_view last = dot == std::string_view::npos ? module : module.substr(dot + 1);
  int64_t number = -1;
  auto [end, failure] = std::from_chars(last.data(), last.data() + last.size(), number);
  return failure == std::errc() && end == last.data() + last.size() ? number : -1;
}

Parts split_model(const ModelOutline& outline) {
  // Items of each list that is not itself inside an item of another.
  std::map<std::string, std::vector<std::string>, std::less<>> items;
  for (const ModuleOutline& module : outline.modules)
    if (module.kind == ModuleKind::list &&
        std::none_of(items.begin(), items.end(),
                     [&](const auto& list) { return text::lies_under(module.name, list.first); }))
      items[module.name];
  for (const ModuleOutline& module : outline.modules)
    if (auto list = items.find(module_of(module.name));
        list != items.end() && layer_number(module.name) >= 0)
      list->second.push_back(module.name);
  auto list = items.find(outline.inner_prefix.empty() ? std::string("layers")
                                                      : outline.inner_prefix + ".layers");
  if (list == items.end())
    list = std::max_element(items.begin(), items.end(), [](const auto& a, const auto& b) {
      return a.second.size() < b.second.size();
    });
  if (list == items.end() || list->second.empty())
    throw bad("the model " + outline.architecture + " has no list of layers to cut into stages",
              kSizeKey)
        .help(set_line(kSizeKey, "1"));

  Parts parts;
  parts.layers = list->second;
  const std::string& name = list->first;
  bool before = true;
  for (const ModuleOutline& module : outline.modules) {
    if (module.name == name) before = false;
    // A part is a direct child of a module that encloses the list, and does not enclose it itself.
    std::string_view above = module_of(module.name);
    if (module.name.empty() || module.name == name || text::lies_under(name, module.name) ||
        !(above.empty() || text::lies_under(name, above)))
      continue;
    if (module.kind == ModuleKind::rotary)
      parts.everywhere.push_back(module.name);
    else if (before || module.kind == ModuleKind::embedding)
      parts.first.push_back(module.name);
    else
      parts.last.push_back(module.name);
  }
  return parts;
}

void check_parts(const ModelOutline& outline, const Parts& parts, const StringTable& given) {
  std::vector<std::string> known = parts.layers;
  for (const auto* more : {&parts.first, &parts.last, &parts.everywhere})
    known.insert(known.end(), more->begin(), more->end());
  std::map<std::string, size_t> part_of;
  for (size_t p = 0; p < given.size(); ++p)
    for (const std::string& name : given[p]) {
      if (std::find(known.begin(), known.end(), name) == known.end()) {
        bool exists = outline.find_module(name) != nullptr;
        Error error = bad("part " + std::to_string(p) + " names " + text::quote(name) +
                              (exists ? ", which is not a whole layer or a module beside the layers"
                                      : ", which the model does not have"),
                          kPartsKey);
        if (std::string near = nearest_name(name, known); !near.empty())
          error.help("did you mean " + text::quote(near) + "?");
        throw error.help(
            "parts are made of " + text::quote(parts.layers.front()) + " to " +
            text::quote(parts.layers.back()) +
            (known.size() > parts.layers.size()
                 ? " and of " + text::list(std::vector<std::string>(
                                               known.begin() +
                                                   static_cast<std::ptrdiff_t>(parts.layers.size()),
                                               known.end()),
                                           [](const std::string& k) { return text::quote(k); })
                 : std::string()));
      }
      bool repeats = std::find(parts.everywhere.begin(), parts.everywhere.end(), name) !=
                     parts.everywhere.end();
      if (auto [at, added] = part_of.emplace(name, p); !added && !repeats)
        throw bad(text::quote(name) + " stands in parts " + std::to_string(at->second) + " and " +
                      std::to_string(p),
                  kPartsKey)
            .help("remove " + text::quote(name) + " from part " + std::to_string(p))
            .help("remove " + text::quote(name) + " from part " + std::to_string(at->second));
    }
  // The first stage reads ids and the last one gives the loss.
  auto stands_in = [&](const std::vector<std::string>& names, size_t wanted, const char* where) {
    for (const std::string& name : names)
      if (auto found = part_of.find(name); found != part_of.end() && found->second != wanted)
        throw bad(text::quote(name) + " stands in part " + std::to_string(found->second) +
                      ", but " + where + " runs it",
                  kPartsKey)
            .help("move " + text::quote(name) + " to part " + std::to_string(wanted))
            .help(leave_out_parts());
  };
  stands_in(parts.first, 0, "the first stage");
  stands_in(parts.last, given.size() - 1, "the last stage");
  // A head that shares the embedding's weight has no parameter of its own.
  for (const std::string& name : parts.last)
    if (outline.tied_embeddings && outline.find_module(name)->kind == ModuleKind::linear &&
        !part_of.contains(name))
      throw bad(text::quote(name) + " is in no part, so nothing would give the logits", kPartsKey)
          .help("add " + text::quote(name) + " to the last part")
          .help(leave_out_parts());
  for (const ParameterOutline& parameter : outline.parameters)
    for (const std::string& name : known)
      if (text::lies_under(parameter.name, name) && !part_of.contains(name)) {
        bool last = std::find(parts.last.begin(), parts.last.end(), name) != parts.last.end();
        throw bad(text::quote(name) + " is in no part, so its weights would be lost", kPartsKey)
            .help("add " + text::quote(name) + " to " +
                  (layer_number(name) >= 0 ? "a part, in order"
                   : last                  ? "the last part"
                                           : "part 0"))
            .help(leave_out_parts());
      }
}

}  // namespace meshwright::pipeline

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
