#include "apps/observe/report/report.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <cmath>
#include <cstdlib>

#include "apps/observe/report/chart.h"
#include "apps/observe/report/pictures.h"
#include "sdk/base/terminal/progress.h"

namespace meshwright::runs {

namespace {

std::string string_at(const std::optional<boost::json::object>& object, const char* key) {
  const boost::json::value* value = object ? object->if_contains(key) : nullptr;
  return value != nullptr && value->is_string() ? std::string(value->as_string()) : std::string();
}
std::string number_at(const std::optional<boost::json::object>& object, const char* key) {
  const boost::json::value* value = object ? object->if_contains(key) : nullptr;
  return value != nullptr && value->is_int64() ? std::to_string(value->as_int64()) : std::string();
}

std::string unquoted(std::string text) {
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"')
    text = text.substr(1, text.size() - 2);
  return text;
}

}  // namespace

Facts facts_of(const RunRecord& run) {
  Facts out;
  out.state = run.state();
  out.strategy = string_at(run.plan, "strategy");
  if (out.strategy.empty()) out.strategy = unquoted(run.setting("distributed.strategy"));
  out.ranks = number_at(run.environment, "world_size");
  if (out.ranks.empty()) out.ranks = number_at(run.plan, "world_size");
  out.device = string_at(run.environment, "device");
  out.started = run.started;
  if (run.seconds) out.took = report::human_duration(*run.seconds);
  out.steps = report::human_count(run.steps());
  // Of epochs the plan alone knows how many steps they are.
  std::string most = number_at(run.plan, "max_steps");
  if (most.empty()) most = run.setting("step_scheduler.max_steps");
  if (!most.empty() && unquoted(most) != "none")
    out.steps += " of " + report::human_count(std::atoll(most.c_str()));
  if (auto s = summary_of(run.metrics.of(Quantity::validation_loss)))
    out.validation =
        format("%.4g at step ", s->least) + report::human_count(static_cast<int64_t>(s->least_at));
  if (auto s = summary_of(run.metrics.of(Quantity::tokens_per_second)))
    out.tokens_per_second = s->median;
  if (auto s = summary_of(run.metrics.of(Quantity::step_ms))) out.step_ms = s->median;
  if (auto s = summary_of(run.metrics.of(Quantity::memory_bytes))) out.memory = s->most;
  bool restarted = false;  // by the launcher, and not told yet where it goes on
  for (const Event& event : run.events) {
    // A run that goes on was started again, by hand or by its launcher.
    out.restarts +=
        event.kind == Event::Kind::restart || (event.kind == Event::Kind::resume && !restarted);
    if (event.kind == Event::Kind::restart) restarted = true;
    if (event.kind == Event::Kind::resume) restarted = false;
  }
  return out;
}

std::string ReadSource::loss_text() const { return loss ? short_number(*loss) : "-"; }

std::vector<ReadSource> sources_of(const Metrics& metrics) {
  std::vector<ReadSource> out;
  double all = 0;
  for (const NamedFigure& one : metrics.source_samples) {
    const auto tokens = std::ranges::find(metrics.source_tokens, one.name, &NamedFigure::name);
    const auto loss = std::ranges::find(metrics.source_losses, one.name, &NamedFigure::name);
    out.push_back({one.name, std::llround(one.value),
                   tokens == metrics.source_tokens.end() ? 0 : std::llround(tokens->value),
                   one.value});
    if (loss != metrics.source_losses.end() && std::isfinite(loss->value))
      out.back().loss = loss->value;
    all += one.value;
  }
  for (ReadSource& one : out) one.share = all > 0 ? one.share / all : 0;
  return out;
}

std::vector<config::Difference> differences_of(const std::vector<RunRecord>& runs) {
  std::vector<std::vector<config::Setting>> all;
  for (const RunRecord& run : runs)
    if (!run.settings.empty()) all.push_back(run.settings);
  if (all.size() != runs.size() || all.size() < 2) return {};
  std::vector<config::Difference> out = config::differences(all);
  std::erase_if(out, [](const config::Difference& one) {
    return one.key == "run.name" || one.key == "run.dir";
  });
  return out;
}

namespace {

const boost::json::object* table_in(const boost::json::object& of, const char* key) {
  const boost::json::value* value = of.if_contains(key);
  return value == nullptr ? nullptr : value->if_object();
}

std::optional<double> figure_of(const boost::json::value* value) {
  if (value == nullptr || !value->is_number()) return std::nullopt;
  const double out = value->to_number<double>();
  return std::isfinite(out) && out >= 0 ? std::optional(out) : std::nullopt;
}
std::optional<double> figure_in(const boost::json::object* table, const char* key) {
  return table == nullptr ? std::nullopt : figure_of(table->if_contains(key));
}

// Of a file, for one line.
std::string line_of(std::string_view text) {
  return report::printable(text.substr(0, text.find('\n')));
}

// What shows of communication, by what it is for.
bool is_exchange(std::string_view part) {
  return part == "tp" || part == "cp" || part == "ep" || part == "shards";
}
constexpr std::string_view kBubble = "pipeline bubble";

std::string time_cell(std::optional<double> seconds) {
  return seconds ? short_number(1000 * *seconds) + " ms" : "-";
}
std::string bytes_cell(std::optional<double> bytes) {
  return bytes ? value_text(*bytes, true) : "-";
}

}  // namespace

std::optional<PredictedStep> predicted_step(const RunRecord& run) {
  if (!run.plan) return std::nullopt;
  const boost::json::object *predicted = table_in(*run.plan, "predicted"),
                            *measured = table_in(*run.plan, "measured");
  const boost::json::object* parts = predicted == nullptr ? nullptr : table_in(*predicted, "parts");
  if (parts == nullptr) return std::nullopt;
  PredictedStep out;
  double exchanges = 0;
  for (const auto& part : *parts) {
    const double seconds = figure_of(&part.value()).value_or(0);
    const std::string name(part.key());
    if (seconds <= 0) continue;
    if (is_exchange(name)) exchanges += seconds;
    out.pipeline = out.pipeline || name == kBubble;
    out.parts.emplace_back(name, seconds);
  }
  out.seconds = {figure_in(predicted, "seconds"), figure_in(measured, "seconds")};
  if (out.parts.empty() || out.seconds.predicted.value_or(0) <= 0) return std::nullopt;
  out.exposed = {exchanges, figure_in(measured, "exposed_comm_seconds")};
  out.memory = {figure_in(predicted, "memory_bytes"), figure_in(measured, "memory_bytes")};
  if (const boost::json::value* name = predicted->if_contains("machine"))
    if (const boost::json::string* text = name->if_string())
      out.machine = line_of(std::string(text->data(), text->size()));
  return out;
}

std::vector<std::vector<std::string>> PredictedStep::rows() const {
  std::vector<std::vector<std::string>> out = {
      {"part of a step", "predicted", "measured", "times"}};
  for (const auto& [name, took] : parts)
    out.push_back({(is_exchange(name) ? "exposed " : "") + line_of(name), time_cell(took), "", ""});
  auto add = [&](const char* name, const Pair& pair, std::string (*cell)(std::optional<double>)) {
    std::string times;
    if (pair.predicted.value_or(0) > 0 && pair.measured)
      times = format("%.2f", *pair.measured / *pair.predicted);
    out.push_back({name, cell(pair.predicted), cell(pair.measured), times});
  };
  add("a step", seconds, time_cell);
  add("exposed communication", exposed, time_cell);
  add("peak memory", memory, bytes_cell);
  return out;
}

std::string PredictedStep::about() const {
  return "Predicted" + (machine.empty() ? "" : " on " + machine) +
         "; measured: the median step, and of rank 0 communication and memory." +
         (pipeline ? " In a pipeline it waits for the work of other stages in that time, too."
                   : "");
}

namespace {

using report::Style;
using report::Tone;
using TextRows = std::vector<std::vector<std::string>>;

std::string heading(const Style& style, const std::string& text) {
  return "\n" + report::paint(style, Tone::bold, text) + "\n";
}

std::string called(const Style& style, const std::vector<RunRecord>& runs, size_t run) {
  const std::string name = report::printable(runs[run].name);
  return runs.size() == 1 ? name
                          : report::paint(style, tone_of_run(run), letter_of(run)) + " " + name;
}

Tone tone_of_state(const std::string& state) {
  return state == "done" ? Tone::green : state == "failed" ? Tone::red : Tone::yellow;
}

// "runs/a: done, 10 of 10 steps; fsdp2 on 8 ranks, cpu; took 1 min 00 s"
std::string headline(const Style& style, const RunRecord& run) {
  const Facts facts = facts_of(run);
  std::string out = report::paint(style, Tone::bold, report::printable(run.name)) + ": " +
                    report::paint(style, tone_of_state(facts.state), facts.state) + ", " +
                    facts.steps + " steps";
  if (!facts.strategy.empty()) out += "; " + report::printable(facts.strategy);
  if (!facts.ranks.empty())
    out += " on " + facts.ranks + (facts.ranks == "1" ? " rank" : " ranks") +
           (facts.device.empty() ? "" : ", " + report::printable(facts.device));
  if (!facts.took.empty()) out += "; took " + facts.took;
  return out + "\n";
}

std::string summary(const Style& style, const std::vector<RunRecord>& runs) {
  if (runs.size() == 1) return headline(style, runs[0]);
  TextRows rows = {{"run", "state", "steps", "loss", "validation", "tokens/s", "ms a step"}};
  for (size_t i = 0; i < runs.size(); ++i) {
    const Facts facts = facts_of(runs[i]);
    const auto loss = summary_of(runs[i].metrics.of(Quantity::loss));
    const auto validation = summary_of(runs[i].metrics.of(Quantity::validation_loss));
    auto known = [](double value) { return value > 0 ? short_number(value) : std::string("-"); };
    rows.push_back({called(style, runs, i),
                    report::paint(style, tone_of_state(facts.state), facts.state),
                    report::human_count(runs[i].steps()), loss ? short_number(loss->last) : "-",
                    validation ? short_number(validation->least) : "-",
                    known(facts.tokens_per_second), known(facts.step_ms)});
  }
  constexpr size_t kRight[] = {2, 3, 4, 5, 6};
  return report::table(style, rows, kRight);
}

std::string plots(const Style& style, const std::vector<RunRecord>& runs) {
  double last = 1;
  for (const RunRecord& run : runs) last = std::max(last, static_cast<double>(run.steps()));
  std::string out;
  for (size_t q = 0; q < kQuantities; ++q) {
    const auto quantity = static_cast<Quantity>(q);
    const QuantityInfo& info = info_of(quantity);
    Plot plot;
    Chart scale;
    scale.may_be_log = info.may_be_log;
    std::string words;
    bool any = false;
    for (size_t i = 0; i < runs.size(); ++i) {
      const Series& series = runs[i].metrics.series[q];
      const std::optional<Summary> s = summary_of(series);
      if (!s) continue;
      any = any || s->most != 0;
      plot.lines.push_back({i, &series});
      scale.lines.emplace_back().summary = *s;
      if (runs.size() == 1)
        words = "  " + value_text(s->first, info.bytes) + " to " + value_text(s->last, info.bytes) +
                ", median " + value_text(s->median, info.bytes);
      if (runs.size() == 1 && s->other > 0)
        words += ", " + report::counted(static_cast<int64_t>(s->other), "value", "values") +
                 " not finite";
    }
    if (plot.lines.empty() || (!any && info.news)) continue;
    plot.last_step = last;
    plot.bytes = info.bytes;
    plot.log = wants_log(scale);
    plot.rows = quantity == Quantity::loss ? 12 : 6;
    std::string unit = info.unit;
    if (plot.log) unit += std::string(unit.empty() ? "" : ", ") + "logarithmic";
    out += "\n" + report::paint(style, Tone::bold, info.title) +
           (unit.empty() ? "" : " (" + unit + ")") + report::paint(style, Tone::dim, words) + "\n" +
           draw_plot(style, plot);
  }
  return out;
}

std::string differences(const Style& style, const std::vector<RunRecord>& runs) {
  const std::vector<config::Difference> all = differences_of(runs);
  if (all.empty()) return {};
  TextRows rows = {{"key"}};
  for (size_t i = 0; i < runs.size(); ++i) rows[0].push_back(letter_of(i));
  for (const config::Difference& one : all) {
    rows.push_back({one.key});
    for (const std::string& value : one.values)
      rows.back().push_back(value.empty() ? "-" : report::printable(value));
  }
  return heading(style, "What differs in the configurations") + report::table(style, rows);
}

std::string predictions(const Style& style, const std::vector<RunRecord>& runs) {
  constexpr size_t kRight[] = {1, 2, 3};
  std::string out;
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::optional<PredictedStep> step = predicted_step(runs[i]);
    if (!step) continue;
    if (runs.size() > 1) out += (out.empty() ? "" : "\n") + called(style, runs, i) + "\n";
    out += report::table(style, step->rows(), kRight);
    for (const std::string& line : report::wrap(step->about(), static_cast<size_t>(style.width)))
      out += report::paint(style, Tone::dim, line) + "\n";
  }
  return out.empty() ? "" : heading(style, "Predicted beside measured") + out;
}

std::string sources(const Style& style, const std::vector<RunRecord>& runs) {
  TextRows read = {{"run", "source", "samples", "tokens", "share", "last loss"}},
           losses = {{"run", "set", "validation loss"}};
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string run = runs.size() == 1 ? report::printable(runs[i].name) : letter_of(i);
    for (const ReadSource& one : sources_of(runs[i].metrics))
      read.push_back({run, report::printable(one.name), report::human_count(one.samples),
                      report::human_count(one.tokens), format("%.1f%%", 100 * one.share),
                      one.loss_text()});
    for (const NamedFigure& one : runs[i].metrics.validation_losses)
      losses.push_back({run, report::printable(one.name), short_number(one.value)});
  }
  constexpr size_t kRead[] = {2, 3, 4, 5}, kLosses[] = {2};
  return (read.size() == 1 ? ""
                           : heading(style, "What was read of each source") +
                                 report::table(style, read, kRead)) +
         (losses.size() == 1 ? ""
                             : heading(style, "The last validation, by set") +
                                   report::table(style, losses, kLosses));
}

std::string times(const Style& style, const std::vector<RunRecord>& runs) {
  TextRows rows = {{"run", "rank", "computation", "beside messages", "waiting", "none of these"}};
  for (size_t i = 0; i < runs.size(); ++i)
    for (const RankTimes& rank : runs[i].times) {
      auto share = [&](int64_t part) {
        return format("%.1f%%",
                      100 * static_cast<double>(part) / static_cast<double>(rank.total()));
      };
      rows.push_back({runs.size() == 1 ? report::printable(runs[i].name) : letter_of(i),
                      std::to_string(rank.rank), share(rank.computing), share(rank.overlapped),
                      share(rank.waiting), share(rank.rest)});
    }
  constexpr size_t kRight[] = {1, 2, 3, 4, 5};
  return rows.size() == 1
             ? ""
             : heading(style, "Where the time of a step goes") + report::table(style, rows, kRight);
}

std::string checkpoints(const Style& style, const std::vector<RunRecord>& runs) {
  TextRows rows = {{"run", "step", "saved (UTC)", "size", "state"}};
  for (size_t i = 0; i < runs.size(); ++i)
    for (const checkpoint::Listed& one : runs[i].checkpoints)
      rows.push_back({runs.size() == 1 ? report::printable(runs[i].name) : letter_of(i),
                      report::human_count(one.found.step),
                      one.meta ? report::printable(one.meta->created) : "-",
                      one.meta ? report::human_bytes(one.bytes) : "-",
                      std::string(one.meta ? "complete" : "damaged") +
                          (one.latest ? ", latest" : "") + (one.best ? ", best" : "")});
  constexpr size_t kRight[] = {1, 3};
  return rows.size() == 1 ? "" : heading(style, "Checkpoints") + report::table(style, rows, kRight);
}

std::string events(const Style& style, const std::vector<RunRecord>& runs) {
  constexpr size_t kMost = 40;  // of a run
  TextRows rows = {{"time (UTC)", "step", "what", ""}};
  if (runs.size() > 1) rows[0].insert(rows[0].begin(), "run");
  for (size_t i = 0; i < runs.size(); ++i) {
    std::vector<const Event*> told;
    for (const Event& event : runs[i].events)
      if (event.kind != Event::Kind::saved) told.push_back(&event);
    for (const EventRow& row : shown_events(told, kMost)) {
      const Event& event = *told[row.event];
      const Tone tone = event.kind == Event::Kind::fault     ? Tone::red
                        : event.kind == Event::Kind::warning ? Tone::yellow
                                                             : Tone::plain;
      if (!row.left_out.empty())
        rows.push_back({"", "", "", row.left_out});
      else
        rows.push_back({event.time.empty() ? "-" : event.time, report::human_count(event.step),
                        report::paint(style, tone, kind_name(event.kind)), line_of(event.text)});
      if (runs.size() > 1) rows.back().insert(rows.back().begin(), letter_of(i));
    }
  }
  const size_t right[] = {runs.size() > 1 ? size_t{2} : size_t{1}};
  return rows.size() == 1 ? ""
                          : heading(style, "What happened") + report::table(style, rows, right);
}

std::string verdicts(const Style& style, const std::vector<RunRecord>& runs) {
  std::string out;
  for (size_t i = 0; i < runs.size(); ++i)
    for (const std::string& sentence : runs[i].verdict.sentences)
      for (const std::string& line :
           report::wrap((runs.size() > 1 ? letter_of(i) + ": " : "") + report::printable(sentence),
                        static_cast<size_t>(style.width)))
        out += line + "\n";
  return out.empty() ? "" : heading(style, "Where the ranks were at the end") + out;
}

}  // namespace

std::string text_report(const Style& style, const std::vector<RunRecord>& runs) {
  return summary(style, runs) + plots(style, runs) + differences(style, runs) +
         predictions(style, runs) + sources(style, runs) + times(style, runs) +
         checkpoints(style, runs) + events(style, runs) + verdicts(style, runs);
}

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
  json::object read, losses;
  for (const ReadSource& one : sources_of(run.metrics))
    read[one.name] = json::object{{"samples", one.samples},
                                  {"tokens", one.tokens},
                                  {"loss", one.loss ? json::value(*one.loss) : json::value()}};
  for (const NamedFigure& one : run.metrics.validation_losses) losses[one.name] = number(one.value);
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
      {"sources", read},
      {"validation_losses", losses},
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
