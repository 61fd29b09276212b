// Why a search finds nothing, and what would have to change.
#include <algorithm>
#include <cmath>

#include "engine/forecast/layouts.h"

namespace meshwright::forecast {
namespace {

using steptime::Layout;

constexpr double kGib = 1024.0 * 1024 * 1024;
constexpr int64_t kMostWorld = 65'536;

std::string whole_number(double value) { return std::to_string(std::llround(value)); }

bool is_of_the_plan(const Error& error) { return exit_status(error.code()) == 3; }

// "set distributed.tp_size = 2" as the search takes it: by the flag that was given.
std::string as_flag(const std::string& help, const Wanted& wanted) {
  if (const std::string start = "set step_scheduler.global_batch_size = ";
      wanted.global_batch && help.starts_with(start))
    return "--global-batch " + help.substr(start.size());
  for (const auto& [key, size] : wanted.fixed)
    for (const char* table : {"distributed.", "step_scheduler."})
      if (const std::string start = "set " + (table + key) + " = "; help.starts_with(start))
        return "--fix " + key + "=" + help.substr(start.size());
  return help;
}

}  // namespace

std::optional<Error> said_by_plan(const plan::Job& job, const steptime::Machine& machine,
                                  const Wanted& wanted, const steptime::SearchRequest& request,
                                  const std::vector<std::string>& more) {
  auto asked = [&](const char* key) {
    const auto found = wanted.fixed.find(key);
    return found == wanted.fixed.end() ? 1.0 : static_cast<double>(found->second);
  };
  Layout layout;
  layout.job = request.base;
  steptime::Job& sizes = layout.job;
  sizes.ranks = request.ranks;
  sizes.tp = asked("tp_size");
  sizes.cp = asked("cp_size");
  sizes.pp = asked("pp_size");
  sizes.ep = asked("ep_size");
  sizes.stages = asked("stages_per_rank");
  if (sizes.stages > 1) sizes.schedule = PipelineSchedule::interleaved_1f1b;
  sizes.shard = std::max(1.0, sizes.ranks / (sizes.tp * sizes.pp)) / asked("dp_replicate_size");
  sizes.micro_batch = asked("local_batch_size");
  const double samples = request.global_batch / std::max(1.0, sizes.dp());
  sizes.micro_batches = std::max(1.0, std::floor(samples / sizes.micro_batch));
  sizes.sequence_parallel = false;
  std::optional<Error> out;
  for (const steptime::Way& way : request.ways) {
    if (way.strategy == layout.strategy) continue;
    layout.strategy = way.strategy;
    std::vector<std::string> settings =
        settings_of(job, layout, request.shape.layers, request.global_batch);
    settings.insert(settings.end(), more.begin(), more.end());
    PlannedLayout planned = plan_layout(job, machine, wanted.reload, wanted.world_size, settings);
    if (!planned.refused || !is_of_the_plan(*planned.refused)) continue;
    // That one strategy lacks it says less than what all would say.
    if (!out || out->code() == ErrorCode::size_not_supported) out = std::move(planned.refused);
    if (out->code() != ErrorCode::size_not_supported) break;
  }
  return out;
}

namespace {

// Sizes, model, batch and world have no layout in common.
[[noreturn]] void refuse_sizes_asked(const plan::Job& job, const steptime::Machine& machine,
                                     const Wanted& wanted, const steptime::SearchRequest& request,
                                     const Found& found) {
  std::string asked;
  for (const auto& [key, size] : wanted.fixed)
    asked += " --fix " + key + "=" + std::to_string(size);
  if (!asked.empty())
    if (const std::optional<Error> said = said_by_plan(job, machine, wanted, request)) {
      Error error(said->code(), "no layout has" + asked + ": " + said->message());
      error.key("--fix");
      for (const std::string& help : said->helps()) error.help(as_flag(help, wanted));
      throw error;
    }
  std::string why;
  for (const auto& [reason, count] : found.result.rejected)
    why += (why.empty() ? ": " : "; ") + reason;
  const std::string ranks = std::to_string(wanted.world_size);
  const bool batch = asked.empty() && std::fmod(request.global_batch, request.ranks) != 0;
  Error error(batch ? ErrorCode::batch_not_divisible : ErrorCode::model_does_not_fit,
              "no layout of this model has " + ranks + " ranks, a batch of " +
                  whole_number(request.global_batch) + (asked.empty() ? "" : " and" + asked) + why);
  error.key(asked.empty() ? "--world-size" : "--fix");
  if (!asked.empty()) error.help("leave out" + asked);
  const double steps = std::max(1.0, std::round(request.global_batch / request.ranks));
  error.help("--global-batch " + whole_number(steps * request.ranks));
  throw error;
}

// The smallest world, by doublings, that has a layout that fits; nullopt: none that is looked at.
std::optional<int64_t> larger_world(const plan::Job& job, const steptime::Machine& machine,
                                    const Wanted& wanted, const steptime::SearchRequest& request) {
  Wanted larger = wanted;
  larger.most = 1;
  while (larger.world_size <= kMostWorld / 2) {
    larger.world_size *= 2;
    if (!planned_layouts(job, machine, larger, request).result.best.empty())
      return larger.world_size;
  }
  return std::nullopt;
}

std::string smallest_text(const plan::Job& job, const Layout& layout,
                          const steptime::SearchRequest& request) {
  const steptime::Job& sizes = layout.job;
  const char* recompute = sizes.recompute == steptime::Recompute::full        ? "full"
                          : sizes.recompute == steptime::Recompute::selective ? "selective"
                                                                              : "no";
  return layout.strategy + " with tp " + whole_number(sizes.tp) + ", cp " + whole_number(sizes.cp) +
         ", pp " + whole_number(sizes.pp) + ", " + recompute +
         " recomputation and micro-batches of " + whole_number(sizes.micro_batch) + ": " +
         set_line(settings_of(job, layout, request.shape.layers, request.global_batch));
}

}  // namespace

void refuse_search(const plan::Job& job, const steptime::Machine& machine, const Wanted& wanted,
                   const steptime::SearchRequest& asked, const Found& found) {
  steptime::SearchRequest request = asked;
  request.ranks = static_cast<double>(wanted.world_size);
  if (found.result.enumerated == 0) refuse_sizes_asked(job, machine, wanted, request, found);
  const std::string all = report::human_count(found.result.enumerated) + " layouts";
  if (!found.least && found.refused && found.result.fitting > 0) {
    Error error(found.refused->code(),
                "none of " + all + " can be planned: " + found.refused->message());
    error.key(found.refused->key());
    for (const std::string& help : found.refused->helps()) error.help(as_flag(help, wanted));
    throw error;
  }
  const Layout& smallest = *found.result.smallest;
  const double least = found.least.value_or(smallest.predicted.memory.peak());
  const double usable = machine.memory - machine.outside;
  const bool limited = wanted.max_memory && *wanted.max_memory < usable;
  Error error(ErrorCode::memory_exceeded, "none of " + all + " fits: the smallest needs " +
                                              bytes_text(least) + " of " +
                                              bytes_text(found.memory) + " a rank");
  error.key(limited ? "--max-memory" : "--machine");
  if (found.why && found.why->refused)
    error.help("--why " + report::printable(found.why->asked) + ": " +
               found.why->refused->message());
  if (limited && least <= usable)
    error.help("--max-memory " + whole_number(std::ceil(least / kGib)));
  error.help((limited && least <= usable
                  ? std::string("the smallest is ")
                  : "a device with " + bytes_text(least) + " for a rank takes ") +
             smallest_text(job, smallest, request));
  if (const std::optional<int64_t> world = larger_world(job, machine, wanted, request))
    error.help("take more ranks: --world-size " + std::to_string(*world));
  else
    error.help("no world of up to " + report::human_count(kMostWorld) +
               " ranks, by doubling, has a layout that fits this batch");
  throw error;
}

}  // namespace meshwright::forecast
