#include <array>
#include <boost/json/array.hpp>
#include <cmath>
#include <cstdio>

#include "engine/forecast/search.h"
#include "sdk/base/pipeline.h"

namespace meshwright::forecast {
namespace {

namespace json = boost::json;
using steptime::Layout;

std::string whole(double value) { return std::to_string(std::llround(value)); }
std::string whole_percent(double share) { return whole(100 * share) + "%"; }

std::string layout_text(const Layout& layout) {
  const steptime::Job& job = layout.job;
  std::string out = layout.strategy;
  auto add = [&](const char* name, double size) {
    if (size > 1) out += std::string(" ") + name + whole(size);
  };
  add("tp", job.tp);
  add("cp", job.cp);
  add("pp", job.pp);
  add("v", job.stages);
  if (job.pp > 1 && job.schedule != PipelineSchedule::one_f_one_b &&
      job.schedule != PipelineSchedule::interleaved_1f1b)
    out += " " + std::string(schedule_name(job.schedule));
  add("ep", job.ep);
  add("dp", job.dp());
  if (job.shard > 1) add("replicas", job.replicas());
  // Without the table: the strategy stands in front.
  for (const std::string& option : layout.options)
    out += " " + option.substr(option.rfind('.', option.find('=')) + 1);
  return out;
}

const char* recompute_text(steptime::Recompute recompute) {
  if (recompute == steptime::Recompute::full) return "full";
  return recompute == steptime::Recompute::selective ? "selective" : "none";
}

// How close the second is, where it says something.
std::string second_text(const Found& found) {
  if (found.result.best.size() < 2) return "";
  const double first = found.result.best[0].predicted.seconds,
               second = found.result.best[1].predicted.seconds, off = second / first - 1;
  if (std::abs(off) <= 0.03) return "The first two are equal: within 3% of each other.\n";
  char text[64];
  std::snprintf(text, sizeof text, "The second is %.0f%% %s.\n", 100 * std::abs(off),
                off > 0 ? "slower" : "faster, but tight");
  return text;
}

}  // namespace

std::string draw(const report::Style& style, const Found& found) {
  std::vector<std::vector<std::string>> rows = {
      {"#", "layout", "micro", "recompute", "tokens/s", "MFU", "memory", "room", "bound by"}};
  for (size_t i = 0; i < found.result.best.size(); ++i) {
    const Layout& layout = found.result.best[i];
    const Forecast& f = found.forecasts[i];
    rows.push_back({std::to_string(i + 1), layout_text(layout),
                    whole(layout.job.micro_batch) + "x" + whole(layout.job.micro_batches),
                    recompute_text(layout.job.recompute),
                    report::human_count(std::llround(f.tokens_a_second)), whole_percent(f.mfu),
                    report::human_bytes(std::llround(f.memory)), whole_percent(1 - layout.use),
                    f.bound + " " + whole_percent(f.bound_share)});
  }
  constexpr std::array<size_t, 3> right = {4, 5, 7};
  std::string out = report::table(style, rows, right);
  out += "\ntokens/s are of one device; memory is what the model counts, of " +
         report::human_bytes(std::llround(found.memory)) + " a rank\n" + second_text(found);
  for (const std::string& why : found.forecasts.front().rough) out += "rough: " + why + "\n";
  out += "\n";
  for (size_t i = 0; i < found.sets.size(); ++i)
    out += std::to_string(i + 1) + ": " + found.sets[i] + "\n";
  out += "\n" + report::human_count(found.result.enumerated) + " layouts looked at, " +
         report::human_count(found.result.fitting) + " fit, " +
         report::human_count(found.result.predicted) + " of them may be the fastest\n";
  for (const auto& [reason, count] : found.result.rejected)
    out += "  not taken: " + report::human_count(count) + " times " + reason + "\n";
  return out;
}

json::object to_json(const Found& found) {
  json::array layouts;
  for (size_t i = 0; i < found.result.best.size(); ++i) {
    const Layout& layout = found.result.best[i];
    const steptime::Job& job = layout.job;
    json::array options;
    for (const std::string& option : layout.options) options.emplace_back(option);
    layouts.push_back(
        json::object{{"strategy", layout.strategy},
                     {"tp", job.tp},
                     {"cp", job.cp},
                     {"pp", job.pp},
                     {"stages_per_rank", job.stages},
                     {"schedule", job.pp > 1 ? json::value(std::string(schedule_name(job.schedule)))
                                             : json::value(nullptr)},
                     {"options", options},
                     {"ep", job.ep},
                     {"dp", job.dp()},
                     {"dp_replicate", job.replicas()},
                     {"sequence_parallel", job.tp > 1 && job.sequence_parallel},
                     {"micro_batch", job.micro_batch},
                     {"micro_batches", job.micro_batches},
                     {"recompute", recompute_text(job.recompute)},
                     {"use", found.sets[i]},
                     {"time", to_json(found.forecasts[i])}});
  }
  json::object rejected;
  for (const auto& [reason, count] : found.result.rejected) rejected[reason] = count;
  return {{"layouts", layouts},
          {"enumerated", found.result.enumerated},
          {"fitting", found.result.fitting},
          {"predicted", found.result.predicted},
          {"rejected", rejected},
          {"memory", std::llround(found.memory)},
          {"equal",
           found.result.best.size() > 1 && std::abs(found.result.best[1].predicted.seconds /
                                                        found.result.best[0].predicted.seconds -
                                                    1) <= 0.03}};
}

}  // namespace meshwright::forecast
