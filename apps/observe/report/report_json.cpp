#include <boost/json/array.hpp>
#include <cmath>
#include <cstdlib>

#include "apps/observe/report/report.h"

namespace meshwright::runs {
namespace {

namespace json = boost::json;

constexpr size_t kPoints = 200;  // of a curve

// JSON has no words for what is not finite.
json::value number(double value) {
  return std::isfinite(value) ? json::value(value) : json::value(nullptr);
}

json::object series_json(const Series& series, const Summary& s) {
  json::array points;
  for (const Point& point : thinned(series, kPoints))
    points.push_back(
        json::array{point.step, number(point.mean), number(point.least), number(point.most)});
  return {{"first", s.first},       {"last", s.last},
          {"median", s.median},     {"least", s.least},
          {"least_at", s.least_at}, {"most", s.most},
          {"most_at", s.most_at},   {"values", s.finite + s.other},
          {"not_finite", s.other},  {"points", points}};
}

json::object pair_json(const PredictedStep::Pair& pair, bool whole = false) {
  auto value = [&](std::optional<double> figure) {
    if (!figure) return json::value(nullptr);
    return whole ? json::value(std::llround(*figure)) : json::value(*figure);
  };
  return {{"predicted", value(pair.predicted)}, {"measured", value(pair.measured)}};
}

json::value prediction_json(const RunRecord& run) {
  const std::optional<PredictedStep> step = predicted_step(run);
  if (!step) return nullptr;
  json::object parts;
  for (const auto& [name, seconds] : step->parts) parts[report::printable(name)] = seconds;
  return json::object{
      {"machine", step->machine.empty() ? json::value(nullptr) : json::value(step->machine)},
      {"parts", parts},
      {"seconds", pair_json(step->seconds)},
      {"exposed_comm_seconds", pair_json(step->exposed)},
      {"memory_bytes", pair_json(step->memory, /*whole=*/true)}};
}

json::object run_json(const RunRecord& run) {
  const Facts facts = facts_of(run);
  auto text = [](const std::string& value) {
    return value.empty() ? json::value(nullptr) : json::value(report::printable(value));
  };
  json::object series;
  for (size_t q = 0; q < kQuantities; ++q)
    if (auto s = summary_of(run.metrics.series[q]))
      series[info_of(static_cast<Quantity>(q)).key] = series_json(run.metrics.series[q], *s);
  json::array events, checkpoints, times, problems;
  for (const Event& event : run.events)
    events.push_back(json::object{{"time", text(event.time)},
                                  {"completed_steps", event.step},
                                  {"kind", kind_name(event.kind)},
                                  {"text", report::printable(event.text)}});
  for (const checkpoint::Listed& one : run.checkpoints)
    checkpoints.push_back(json::object{{"path", one.found.path.string()},
                                       {"step", one.found.step},
                                       {"complete", one.meta.has_value()},
                                       {"latest", one.latest},
                                       {"best", one.best},
                                       {"bytes", one.bytes}});
  for (const RankTimes& rank : run.times)
    times.push_back(json::object{{"rank", rank.rank},
                                 {"steps", rank.steps},
                                 {"computing_us", rank.computing},
                                 {"overlapped_us", rank.overlapped},
                                 {"waiting_us", rank.waiting},
                                 {"rest_us", rank.rest},
                                 {"messages_us", rank.communicating}});
  for (const std::string& problem : run.problems) problems.emplace_back(report::printable(problem));
  json::array verdict;
  for (const std::string& sentence : run.verdict.sentences)
    verdict.emplace_back(report::printable(sentence));
  return {
      {"run", report::printable(run.name)},
      {"state", facts.state},
      {"completed_steps", run.steps()},
      {"tokens", std::llround(run.metrics.tokens)},
      {"strategy", text(facts.strategy)},
      {"ranks", facts.ranks.empty() ? json::value() : json::value(std::atoll(facts.ranks.c_str()))},
      {"device", text(facts.device)},
      {"started", text(run.started)},
      {"ended", text(run.ended)},
      {"series", series},
      {"prediction", prediction_json(run)},
      {"checkpoints", checkpoints},
      {"times", times},
      {"events", events},
      {"verdict", json::object{{"sentences", verdict},
                               {"awaited_ranks",
                                json::array(run.verdict.ranks.begin(), run.verdict.ranks.end())}}},
      {"problems", problems}};
}

}  // namespace

json::object report_json(const std::vector<RunRecord>& runs) {
  json::array all, differ;
  for (const RunRecord& run : runs) all.push_back(run_json(run));
  for (const config::Difference& one : differences_of(runs)) {
    json::array values;
    for (const std::string& value : one.values)
      values.push_back(value.empty() ? json::value(nullptr)
                                     : json::value(report::printable(value)));
    differ.push_back(json::object{{"key", one.key}, {"values", values}});
  }
  return {{"runs", all}, {"differences", differ}};
}

}  // namespace meshwright::runs
