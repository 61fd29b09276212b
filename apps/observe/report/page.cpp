// Fills page.html: what is shown of the runs, in which order and in which words. How it looks and
// how it is drawn is the page's own affair.
#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <exception>

#include "apps/observe/report/chart.h"
#include "apps/observe/report/pictures.h"
#include "apps/observe/report/report.h"
#include "meshwright/abi.h"
#include "page_template.h"

namespace meshwright::runs {
namespace {

namespace json = boost::json;

// Points of one curve: with more runs each has fewer, so that the page stays small.
size_t points_a_line(size_t runs) {
  constexpr size_t kMost = 320, kLeast = 60, kFull = 8;
  return std::clamp(kMost * kFull / std::max<size_t>(runs, 1), kLeast, kMost);
}

// "2026-11-24 09:30"
std::string when(std::string time) {
  if (time.size() == 20) {
    time[10] = ' ';
    time.resize(19);
  }
  return time;
}

std::string known(double value, bool bytes) { return value > 0 ? value_text(value, bytes) : "-"; }

// What the only run has come to: [what, value, more].
json::array cards(const RunRecord& run) {
  const Facts facts = facts_of(run);
  json::array out;
  auto card = [&](const char* what, const std::string& value, const std::string& more = {}) {
    if (!value.empty() && value != "-") out.push_back(json::array{what, value, more});
  };
  card("state", facts.state,
       facts.restarts > 0
           ? "went on " + report::counted(static_cast<int64_t>(facts.restarts), "time", "times")
           : "");
  card("steps", facts.steps,
       run.metrics.tokens > 0 ? short_number(run.metrics.tokens) + " tokens" : "");
  if (auto loss = summary_of(run.metrics.of(Quantity::loss)))
    card("loss", short_number(loss->last), "from " + short_number(loss->first));
  card("least validation loss", facts.validation.substr(0, facts.validation.find(" at ")),
       facts.validation.empty() ? "" : facts.validation.substr(facts.validation.find("at ")));
  for (const NamedFigure& one : run.metrics.validation_losses)
    card(("validation loss of " + one.name).c_str(), short_number(one.value), "the last one");
  for (const ReadSource& one : sources_of(run.metrics)) {
    card(("loss of " + one.name).c_str(), one.loss_text(), "the last one");
    card(("read of " + one.name).c_str(), short_number(100 * one.share) + "%",
         report::counted(one.samples, "sample", "samples") + ", " +
             short_number(static_cast<double>(one.tokens)) + " tokens");
  }
  card("tokens a second", known(facts.tokens_per_second, false), "median of steps");
  card("time of a step", facts.step_ms > 0 ? short_number(facts.step_ms) + " ms" : "", "median");
  card("memory", known(facts.memory, true), "peak of rank 0");
  card("strategy", facts.strategy,
       facts.ranks.empty() ? ""
                           : facts.ranks + (facts.ranks == "1" ? " rank" : " ranks") +
                                 (facts.device.empty() ? "" : " on " + facts.device));
  card("took", facts.took, facts.started.empty() ? "" : "from " + when(facts.started));
  return out;
}

// A row of the table of several runs.
json::array summary_row(const RunRecord& run) {
  const Facts facts = facts_of(run);
  const auto loss = summary_of(run.metrics.of(Quantity::loss));
  return {facts.state,
          facts.steps,
          loss ? short_number(loss->last) : "-",
          facts.validation.empty() ? "-" : facts.validation,
          known(facts.tokens_per_second, false),
          known(facts.step_ms, false),
          known(facts.memory, true),
          facts.strategy,
          facts.ranks,
          when(facts.started),
          facts.took};
}

const char* sign_of(Event::Kind kind) {
  if (kind == Event::Kind::fault) return "cross";
  if (kind == Event::Kind::resume || kind == Event::Kind::restart) return "triangle";
  return kind == Event::Kind::stop ? "square" : nullptr;
}

// What happened at steps, for the axes of all charts.
json::array marks(const std::vector<RunRecord>& runs) {
  constexpr size_t kMost = 60;  // more would be a wall
  json::array out;
  for (size_t i = 0; i < runs.size(); ++i)
    for (const Event& event : runs[i].events)
      if (const char* sign = sign_of(event.kind); sign != nullptr && out.size() < kMost)
        out.push_back(json::object{{"run", i},
                                   {"step", event.step},
                                   {"sign", sign},
                                   {"text", runs[i].name + ", after step " +
                                                std::to_string(event.step) + ": " + event.text}});
  return out;
}

// The shade reaches from the rank that worked least to the one that worked most.
void spread_over_ranks(ChartLine& line, const Metrics& metrics, size_t points) {
  const std::vector<Point> least = thinned(metrics.least_work, points),
                           most = thinned(metrics.most_work, points);
  for (size_t i = 0; i < line.points.size(); ++i) {
    line.points[i].least = std::min(line.points[i].least, least[i].least);
    line.points[i].most = std::max(line.points[i].most, most[i].most);
    line.summary.least = std::min(line.summary.least, line.points[i].least);
    line.summary.most = std::max(line.summary.most, line.points[i].most);
  }
}

json::array charts(const std::vector<RunRecord>& runs) {
  json::array out;
  const size_t points = points_a_line(runs.size());
  double last = 1;
  for (const RunRecord& run : runs) last = std::max(last, static_cast<double>(run.steps()));
  for (size_t q = 0; q < kQuantities; ++q) {
    const QuantityInfo& info = info_of(static_cast<Quantity>(q));
    Chart chart{info.key, info.title, info.unit, info.bytes, info.may_be_log, 1, last, {}};
    bool any = false;
    for (size_t i = 0; i < runs.size(); ++i) {
      const Series& series = runs[i].metrics.series[q];
      const std::optional<Summary> summary = summary_of(series);
      if (!summary) continue;
      any = any || summary->most != 0;
      chart.lines.push_back({i, runs[i].name, thinned(series, points), *summary});
      if (static_cast<Quantity>(q) == Quantity::rank_work_ms)
        spread_over_ranks(chart.lines.back(), runs[i].metrics, points);
    }
    // Tokens that got lost are news, none are not.
    if (!chart.lines.empty() && (any || !info.news)) out.push_back(chart_json(chart));
  }
  return out;
}

json::array differences(const std::vector<RunRecord>& runs) {
  json::array out;
  for (const config::Difference& one : differences_of(runs)) {
    json::array& row = out.emplace_back(json::array{one.key}).as_array();
    for (const std::string& value : one.values)
      row.push_back(value.empty() ? json::value(nullptr) : json::value(value));
  }
  return out;
}

json::object checkpoint_row(const checkpoint::Listed& one) {
  json::object out = {
      {"cells",
       json::array{report::human_count(one.found.step), one.meta ? when(one.meta->created) : "-",
                   one.meta ? one.meta->strategy : "-",
                   one.meta ? std::to_string(one.meta->world_size) : "-",
                   one.meta ? short_number(one.meta->lr) : "-",
                   one.meta ? report::human_bytes(one.bytes) : "-"}},
      {"more", std::string(one.latest ? ", latest" : "") + (one.best ? ", best" : "")}};
  if (!one.meta) out["problem"] = one.found.problem;
  return out;
}

// What stands of one run below the curves. Of a part that there is nothing of there is no key.
json::object run_json(const RunRecord& run, size_t index, json::array& problems) {
  json::object out = {{"letter", letter_of(index)}, {"name", run.name}};
  auto draw = [&](const char* key, const char* file, auto&& json_of) {
    try {
      out[key] = json_of();
    } catch (const std::exception&) {
      problems.emplace_back((run.folder / file).string() +
                            " is not as a run writes it: what it says is left out");
    }
  };
  if (run.plan)
    draw("plan", "plan.json", [&] {
      const auto peak = summary_of(run.metrics.of(Quantity::memory_bytes));
      return plan_json(*run.plan, peak ? peak->most : 0);
    });
  if (const std::optional<PredictedStep> step = predicted_step(run)) {
    json::array rows;
    for (const std::vector<std::string>& row : step->rows())
      rows.push_back(json::array(row.begin(), row.end()));
    out["prediction"] = {{"about", step->about()}, {"rows", rows}};
  }
  if (!run.times.empty()) out["times"] = times_json(run.times);
  if (run.expert_load)
    draw("experts", "expert_load.json", [&] { return experts_json(*run.expert_load); });
  if (!run.checkpoints.empty()) {
    json::array& rows = out["checkpoints"].emplace_array();
    for (const checkpoint::Listed& one : run.checkpoints) rows.push_back(checkpoint_row(one));
  }
  if (!run.settings.empty()) {
    json::array& rows = out["settings"].emplace_array();
    for (const config::Setting& setting : run.settings)
      rows.push_back(json::array{setting.key, setting.value});
  }
  if (!run.verdict.sentences.empty())
    out["verdict"] = {
        {"sentences", json::array(run.verdict.sentences.begin(), run.verdict.sentences.end())},
        {"folder", (run.folder / postmortem::kFolder).string()}};
  return out;
}

// What happened to all runs, by time.
void add_events(const std::vector<RunRecord>& runs, json::object& page) {
  constexpr size_t kMost = 400;
  struct Row {
    size_t run;
    const Event* event;
    std::string time;  // of one without: that of the one before it
  };
  std::vector<Row> all;
  int64_t saves = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    std::string time;
    for (const Event& event : runs[i].events) {
      if (!event.time.empty()) time = event.time;
      event.kind == Event::Kind::saved ? void(++saves) : all.push_back({i, &event, time});
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Row& a, const Row& b) { return a.time < b.time; });
  std::vector<const Event*> events;
  for (const Row& row : all) events.push_back(row.event);
  json::array& rows = page["events"].emplace_array();
  for (const EventRow& row : shown_events(events, kMost)) {
    if (!row.left_out.empty()) {
      rows.push_back(json::object{{"left_out", row.left_out}});
      continue;
    }
    const Event& event = *events[row.event];
    rows.push_back(json::object{{"run", all[row.event].run},
                                {"time", event.time.empty() ? "-" : when(event.time)},
                                {"step", report::human_count(event.step)},
                                {"kind", kind_name(event.kind)},
                                {"text", event.text}});
  }
  if (saves > 0)
    page["saves"] = "Beside " + report::counted(saves, "save", "saves") + " of checkpoints.";
}

// Foreign text is shown as every other form of a report shows it.
void make_printable(json::value& value) {
  if (json::string* text = value.if_string()) *text = report::printable(*text);
  if (json::array* array = value.if_array())
    for (json::value& item : *array) make_printable(item);
  if (json::object* object = value.if_object())
    for (auto& field : *object) make_printable(field.value());
}

}  // namespace

std::string html_page(const std::vector<RunRecord>& runs, const std::string& made) {
  json::object page = {
      {"title", runs.size() > 1 ? std::to_string(runs.size()) + " runs" : runs[0].name},
      {"made",
       "Made by meshwright " MESHWRIGHT_VERSION " on " + when(made) + " UTC. Times are UTC."},
      {"marks", marks(runs)},
      {"charts", charts(runs)}};
  json::array problems, found, shown;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const std::string& problem : runs[i].problems) problems.emplace_back(problem);
    shown.push_back(run_json(runs[i], i, found));
  }
  problems.insert(problems.end(), found.begin(), found.end());
  page["runs"] = shown;
  page["problems"] = problems;
  if (runs.size() == 1) {
    page["cards"] = cards(runs[0]);
  } else {
    json::array& summary = page["summary"].emplace_array();
    for (const RunRecord& run : runs) summary.push_back(summary_row(run));
    page["differences"] = differences(runs);
  }
  add_events(runs, page);
  json::value data = std::move(page);
  make_printable(data);
  // Within strings alone, where it would begin a tag.
  std::string text = json::serialize(data), out = kPageTemplate;
  for (size_t at = 0; (at = text.find('<', at)) != std::string::npos;)
    text.replace(at, 1, "\\u003c");
  constexpr std::string_view kPlace = "\"data\"</script>";
  return out.replace(out.find(kPlace), std::string_view("\"data\"").size(), text);
}

}  // namespace meshwright::runs
