// A search's answer for machines.
#include <boost/json/array.hpp>
#include <cmath>

#include "apps/performance/forecast/layouts.h"
#include "sdk/base/pipeline.h"

namespace meshwright::forecast {
namespace {

namespace json = boost::json;
using steptime::Layout;

json::object json_of(const Layout& layout, const std::string& use, const Forecast& forecast) {
  const steptime::Job& job = layout.job;
  json::array options;
  for (const std::string& option : layout.options) options.emplace_back(option);
  return {{"layout", layout_text(layout)},
          {"strategy", layout.strategy},
          {"tp", std::llround(job.tp)},
          {"cp", std::llround(job.cp)},
          {"pp", std::llround(job.pp)},
          {"stages_per_rank", std::llround(job.stages)},
          {"schedule", job.pp > 1 ? json::value(std::string(schedule_name(job.schedule)))
                                  : json::value(nullptr)},
          {"options", options},
          {"ep", std::llround(job.ep)},
          {"dp", std::llround(job.dp())},
          {"dp_replicate", std::llround(job.replicas())},
          {"sequence_parallel", job.tp > 1 && job.sequence_parallel},
          {"micro_batch", std::llround(job.micro_batch)},
          {"micro_batches", std::llround(job.micro_batches)},
          {"recompute", recompute_word(job.recompute)},
          {"use", use},
          {"time", to_json(forecast)}};
}

json::object json_of(const Found& found, const Why& why) {
  json::object out = {{"asked", why.asked},
                      {"layout", nullptr},
                      {"rank", nullptr},
                      {"behind", nullptr},
                      {"refused", nullptr}};
  if (why.layout)
    out["layout"] = json_of(*why.layout, why.set, limited(found, why.forecast.value()));
  if (why.refused) {
    json::array help;
    for (const std::string& text : why.refused->helps()) help.emplace_back(text);
    out["refused"] = json::object{{"code", code_string(why.refused->code())},
                                  {"message", why.refused->message()},
                                  {"help", help}};
  } else {
    out["rank"] = why.before + 1;
    out["behind"] = behind(found, *why.layout);
  }
  return out;
}

}  // namespace

json::object to_json(const Found& found) {
  json::array layouts;
  for (size_t i = 0; i < found.result.best.size(); ++i)
    layouts.push_back(
        json_of(found.result.best[i], found.sets[i], limited(found, found.forecasts[i])));
  json::array families;
  for (const auto& [layout, fits_with] : found.families) {
    json::object parts;
    for (const auto& [name, bytes] : parts_of(layout.predicted.memory)) parts[name] = bytes;
    families.push_back(json::object{
        {"layout", layout_text(layout)},
        {"bytes", std::llround(layout.predicted.memory.peak())},
        {"parts", parts},
        {"fits_with", fits_with.empty() ? json::value(nullptr) : json::value(fits_with)}});
  }
  json::array turns;
  for (const Crossover& crossover : found.crossovers) {
    json::array figures;
    for (const std::string& key : crossover.figures) figures.emplace_back(key);
    turns.push_back(json::object{
        {"figures", figures}, {"factor", crossover.factor}, {"first", crossover.first}});
  }
  json::object rejected;
  for (const auto& [reason, count] : found.result.rejected) rejected[reason] = count;
  json::object out = {{"layouts", layouts},
                      {"enumerated", found.result.enumerated},
                      {"fitting", found.result.fitting},
                      {"predicted", found.result.predicted},
                      {"rejected", rejected},
                      {"memory", std::llround(found.memory)},
                      {"too_large", families},
                      {"equal", found.result.best.size() > 1 &&
                                    std::abs(found.result.best[1].predicted.seconds /
                                                 found.result.best[0].predicted.seconds -
                                             1) <= 0.03},
                      {"turns", turns}};
  if (found.why) out["why"] = json_of(found, *found.why);
  return out;
}

}  // namespace meshwright::forecast
