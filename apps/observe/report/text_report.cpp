#include <algorithm>

#include "apps/observe/report/chart.h"
#include "apps/observe/report/plot.h"
#include "apps/observe/report/report.h"
#include "apps/observe/report/scale.h"

namespace meshwright::runs {
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
    const std::vector<bool> shown = shown_events(told, kMost);
    int64_t left_out = 0;
    for (size_t e = 0; e < told.size(); ++e) {
      if (!shown[e]) {
        ++left_out;
        if (e + 1 < told.size() && !shown[e + 1]) continue;
        rows.push_back({"", "", "", report::human_count(left_out) + " more are in run.log"});
        if (runs.size() > 1) rows.back().insert(rows.back().begin(), letter_of(i));
        left_out = 0;
        continue;
      }
      const Event& event = *told[e];
      const Tone tone = event.kind == Event::Kind::fault     ? Tone::red
                        : event.kind == Event::Kind::warning ? Tone::yellow
                                                             : Tone::plain;
      rows.push_back({event.time.empty() ? "-" : event.time, report::human_count(event.step),
                      report::paint(style, tone, kind_name(event.kind)),
                      report::printable(event.text.substr(0, event.text.find('\n')))});
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
         predictions(style, runs) + times(style, runs) + checkpoints(style, runs) +
         events(style, runs) + verdicts(style, runs);
}

}  // namespace meshwright::runs
