#include <algorithm>
#include <boost/json/array.hpp>
#include <cmath>
#include <exception>
#include <map>

#include "apps/observe/report/chart.h"
#include "apps/observe/report/html.h"
#include "apps/observe/report/page_style.h"
#include "apps/observe/report/pictures.h"
#include "apps/observe/report/report.h"
#include "meshwright/abi.h"

namespace meshwright::runs {
namespace {

using Rows = HtmlRows;

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

// `state`: a word of this program's own.
Html state_text(const std::string& state) {
  return Html::markup("<span class=\"state " + state + "\">" + state + "</span>");
}

Html code(const std::string& text) { return Html::markup("<code>" + escaped(text) + "</code>"); }
Html dim(const std::string& text) {
  return Html::markup("<span class=\"dim\">" + escaped(text) + "</span>");
}
Html bold(const std::string& text) { return Html::markup("<b>" + escaped(text) + "</b>"); }

// A sign beside the word: what it is must not hang on its colour.
Html kind_text(Event::Kind kind) {
  static const std::map<Event::Kind, const char*> signs = {
      {Event::Kind::start, "▸"},   {Event::Kind::resume, "▲"},  {Event::Kind::change, "≠"},
      {Event::Kind::notice, "·"},  {Event::Kind::warning, "!"}, {Event::Kind::fault, "✕"},
      {Event::Kind::restart, "▲"}, {Event::Kind::stop, "■"},    {Event::Kind::saved, "↓"},
      {Event::Kind::done, "✓"}};
  const std::string name = kind_name(kind);
  return Html::markup("<span class=\"state " + name + "\">" + signs.at(kind) + " " + name +
                      "</span>");
}

class Page {
 public:
  explicit Page(const std::vector<RunRecord>& runs) : runs_(runs), many_(runs.size() > 1) {}

  std::string html(const std::string& made) {
    const std::string title = many_ ? format("%zu runs", runs_.size()) : runs_[0].name;
    const std::string body =
        summary() + charts() + differences() + sections() + events() + verdicts();
    return "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
           "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>" +
           escaped(title) + " · Meshwright</title>\n<link rel=\"icon\" href=\"data:,\">\n<style>" +
           kPageStyle + "</style></head>\n<body>" + kPatterns + "<main>\n<h1>" + escaped(title) +
           "</h1>\n" + problems() + body + "<footer>Made by meshwright " MESHWRIGHT_VERSION " on " +
           escaped(when(made)) + " UTC. Times are UTC.</footer>\n</main>\n<script>" + kPageScript +
           "</script></body></html>\n";
  }

 private:
  static constexpr const char* kPatterns =
      R"svg(<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>
<pattern id="dots" width="6" height="6" patternUnits="userSpaceOnUse"><rect width="6" height="6" fill="var(--c0)" fill-opacity=".35"/><circle cx="2" cy="2" r="1.2" fill="var(--c0)"/></pattern>
<pattern id="lines" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="6" height="6" fill="var(--c1)" fill-opacity=".3"/><path d="M1 0v6" stroke="var(--c1)" stroke-width="2"/></pattern>
</defs></svg>)svg";

  std::string called(size_t run) const {
    return many_ ? "<b>" + letter_of(run) + "</b> " + escaped(runs_[run].name)
                 : escaped(runs_[run].name);
  }

  std::string problems() const {
    std::string items;
    for (const RunRecord& run : runs_)
      for (const std::string& problem : run.problems)
        items += "<li>" + escaped(problem) + "</li>\n";
    for (const std::string& problem : found_) items += "<li>" + escaped(problem) + "</li>\n";
    return items.empty() ? ""
                         : "<div class=\"problems\"><b>! Not everything could be read</b><ul>" +
                               items + "</ul></div>\n";
  }

  std::string summary() const {
    if (!many_) return cards(runs_[0]);
    Rows rows = {{"", "run", "state", "steps", "loss", "least validation loss", "tokens a second",
                  "ms a step", "memory", "strategy", "ranks", "started", "took"}};
    for (size_t i = 0; i < runs_.size(); ++i) {
      const Facts facts = facts_of(runs_[i]);
      const auto loss = summary_of(runs_[i].metrics.of(Quantity::loss));
      rows.push_back({Html::markup("<b>" + letter_of(i) + "</b> " + line_sample(i)), runs_[i].name,
                      state_text(facts.state), facts.steps, loss ? short_number(loss->last) : "-",
                      facts.validation.empty() ? "-" : facts.validation,
                      known(facts.tokens_per_second, false), known(facts.step_ms, false),
                      known(facts.memory, true), facts.strategy, facts.ranks, when(facts.started),
                      facts.took});
    }
    return html_table(rows, {3, 4, 5, 6, 7, 8, 10}, "facts");
  }

  static std::string known(double value, bool bytes) {
    return value > 0 ? value_text(value, bytes) : "-";
  }

  static std::string cards(const RunRecord& run) {
    const Facts facts = facts_of(run);
    std::string out = "<div class=\"cards\">";
    auto card = [&](const Html& what, const Html& value, const Html& more = {}) {
      if (!value.empty() && value.html() != "-")
        out += "<div class=\"card\"><span>" + what.html() + "</span><b>" + value.html() +
               "</b><span>" + more.html() + "</span></div>\n";
    };
    card("state", state_text(facts.state),
         facts.restarts > 0
             ? "went on " + report::counted(static_cast<int64_t>(facts.restarts), "time", "times")
             : "");
    card("steps", facts.steps,
         run.metrics.tokens > 0 ? short_number(run.metrics.tokens) + " tokens" : "");
    if (auto loss = summary_of(run.metrics.of(Quantity::loss)))
      card("loss", short_number(loss->last), "from " + short_number(loss->first));
    card("least validation loss", facts.validation.substr(0, facts.validation.find(" at ")),
         facts.validation.empty() ? "" : facts.validation.substr(facts.validation.find("at ")));
    card("tokens a second", known(facts.tokens_per_second, false), "median of steps");
    card("time of a step", facts.step_ms > 0 ? short_number(facts.step_ms) + " ms" : "", "median");
    card("memory", known(facts.memory, true), "peak of rank 0");
    card("strategy", facts.strategy,
         facts.ranks.empty() ? ""
                             : facts.ranks + (facts.ranks == "1" ? " rank" : " ranks") +
                                   (facts.device.empty() ? "" : " on " + facts.device));
    card("took", facts.took, facts.started.empty() ? "" : "from " + when(facts.started));
    return out + "</div>\n";
  }

  std::vector<ChartMark> marks() const {
    constexpr size_t kMost = 60;  // more would be a wall
    std::vector<ChartMark> out;
    for (size_t i = 0; i < runs_.size(); ++i)
      for (const Event& event : runs_[i].events) {
        std::optional<ChartMark::Sign> sign;
        if (event.kind == Event::Kind::fault) sign = ChartMark::Sign::cross;
        if (event.kind == Event::Kind::resume || event.kind == Event::Kind::restart)
          sign = ChartMark::Sign::triangle;
        if (event.kind == Event::Kind::stop) sign = ChartMark::Sign::square;
        if (!sign || out.size() == kMost) continue;
        out.push_back(
            {i, static_cast<double>(event.step), *sign,
             runs_[i].name + ", after step " + std::to_string(event.step) + ": " + event.text});
      }
    return out;
  }

  // The shade reaches from the rank that worked least to the one that worked most.
  void spread_over_ranks(ChartLine& line, const Metrics& metrics) const {
    const std::vector<Point> least = thinned(metrics.least_work, points_a_line(runs_.size())),
                             most = thinned(metrics.most_work, points_a_line(runs_.size()));
    for (size_t i = 0; i < line.points.size(); ++i) {
      line.points[i].least = std::min(line.points[i].least, least[i].least);
      line.points[i].most = std::max(line.points[i].most, most[i].most);
      line.summary.least = std::min(line.summary.least, line.points[i].least);
      line.summary.most = std::max(line.summary.most, line.points[i].most);
    }
  }

  std::string charts() const {
    std::string out;
    const std::vector<ChartMark> all_marks = marks();
    double last = 1;
    for (const RunRecord& run : runs_) last = std::max(last, static_cast<double>(run.steps()));
    for (size_t q = 0; q < kQuantities; ++q) {
      const QuantityInfo& info = info_of(static_cast<Quantity>(q));
      Chart chart{info.key, info.title, info.unit, info.bytes, info.may_be_log,
                  1,        last,       {},        all_marks};
      bool any = false;
      for (size_t i = 0; i < runs_.size(); ++i) {
        const Series& series = runs_[i].metrics.series[q];
        const std::optional<Summary> summary = summary_of(series);
        if (!summary) continue;
        any = any || summary->most != 0;
        chart.lines.push_back(
            {i, runs_[i].name, thinned(series, points_a_line(runs_.size())), *summary});
        if (static_cast<Quantity>(q) == Quantity::rank_work_ms)
          spread_over_ranks(chart.lines.back(), runs_[i].metrics);
      }
      // Tokens that got lost are news, none are not.
      if (chart.lines.empty() || (!any && info.news)) continue;
      out += draw_chart(chart);
    }
    if (out.empty()) return {};
    std::string legend;
    if (many_) {
      for (size_t i = 0; i < runs_.size(); ++i)
        legend += "<span>" + line_sample(i) + " " + called(i) + "</span> ";
      legend = "<p class=\"legend runs\">" + legend + "</p>\n";
    }
    if (!all_marks.empty())
      legend +=
          "<p class=\"dim\">On the axis: ✕ a fault, ▲ the run goes on, ■ it was told to end.</p>";
    return "<h2>Curves</h2>\n<p class=\"dim\">Over steps. Where a point stands for several, the "
           "line "
           "is their mean and the shade reaches from the least to the most; of the work of ranks, "
           "which is without waiting, over all ranks around their median.</p>\n" +
           legend + "<div class=\"charts\">\n" + out + "</div>\n";
  }

  std::string differences() const {
    if (!many_) return {};
    const std::vector<config::Difference> all = differences_of(runs_);
    std::string out = "<h2>What differs in the configurations</h2>\n";
    if (all.empty())
      return out + "<p class=\"dim\">Nothing, as far as the runs' config.resolved.toml tell.</p>\n";
    // Tables of a strategy that only some runs have say little beside the strategy's name.
    Rows rows = {{"key"}};
    for (size_t i = 0; i < runs_.size(); ++i) rows[0].push_back(Html::markup(called(i)));
    Rows apart = rows;
    for (const config::Difference& one : all) {
      const bool everywhere = std::count(one.values.begin(), one.values.end(), "") == 0;
      std::vector<Html> row = {code(one.key)};
      for (const std::string& value : one.values)
        row.push_back(value.empty() ? dim("not set") : code(value));
      (everywhere ? rows : apart).push_back(std::move(row));
    }
    if (rows.size() > 1) out += html_table(rows, {}, "settings");
    if (apart.size() > 1)
      out += "<details" + std::string(rows.size() == 1 ? " open" : "") + "><summary>" +
             report::counted(static_cast<int64_t>(apart.size()) - 1, "key", "keys") +
             " that not every run has</summary>" + html_table(apart, {}, "settings") +
             "</details>\n";
    return out;
  }

  // What `draw` makes of a file that a run wrote, or a problem.
  template <class Draw>
  std::string drawn(const RunRecord& run, const char* file, Draw&& draw) {
    try {
      return draw();
    } catch (const std::exception&) {
      found_.push_back((run.folder / file).string() +
                       " is not as a run writes it: what it says is left out");
      return {};
    }
  }

  std::string sections() {
    std::string out;
    for (size_t i = 0; i < runs_.size(); ++i) {
      const RunRecord& run = runs_[i];
      std::string body = plan(run) + prediction(run) + times(run) + experts(run) +
                         checkpoints(run) + settings(run);
      if (body.empty()) continue;
      if (many_)
        out += "<details" + std::string(runs_.size() <= 4 ? " open" : "") + "><summary>" +
               called(i) + "</summary>\n" + body + "</details>\n";
      else
        out += body;
    }
    return many_ && !out.empty() ? "<h2>Each run</h2>\n" + out : out;
  }

  std::string titled(const char* title, const std::string& body) const {
    const char* level = many_ ? "h3" : "h2";
    return body.empty() ? "" : format("<%s>%s</%s>\n", level, title, level) + body;
  }

  std::string plan(const RunRecord& run) {
    if (!run.plan) return {};
    return titled("Mesh and plan", drawn(run, "plan.json", [&] {
                    const auto peak = summary_of(run.metrics.of(Quantity::memory_bytes));
                    std::string memory = memory_picture(*run.plan, peak ? peak->most : 0);
                    if (!memory.empty())
                      memory = "<div><p class=\"dim\">Memory of rank 0</p>" + memory + "</div>\n";
                    return "<div class=\"pictures\">" + mesh_picture(*run.plan) + memory +
                           pipeline_picture(*run.plan) + "</div>\n" + wire(*run.plan);
                  }));
  }

  static std::string wire(const boost::json::object& plan) {
    const boost::json::array& rows = plan.at("wire").as_array();
    if (rows.empty()) return {};
    Rows out = {{"axis", "collective", "times a step", "bytes a rank sends"}};
    for (const boost::json::value& value : rows) {
      const boost::json::object& row = value.as_object();
      std::string every;
      if (const boost::json::value* k = row.if_contains("every"))
        every = format(", every %lld steps", static_cast<long long>(k->to_number<int64_t>()));
      out.push_back({std::string(row.at("axis").as_string()), std::string(row.at("op").as_string()),
                     report::human_count(row.at("count").to_number<int64_t>()) + every,
                     report::human_bytes(row.at("bytes").to_number<int64_t>())});
    }
    return "<details><summary>Traffic of a step, as planned</summary>" + html_table(out, {2, 3}) +
           "</details>\n";
  }

  std::string prediction(const RunRecord& run) const {
    const std::optional<PredictedStep> step = predicted_step(run);
    if (!step) return {};
    Rows rows;
    for (const std::vector<std::string>& row : step->rows())
      rows.emplace_back(row.begin(), row.end());
    return titled("Predicted beside measured", "<p class=\"dim\">" + escaped(step->about()) +
                                                   "</p>\n" + html_table(rows, {1, 2, 3}));
  }

  std::string times(const RunRecord& run) const {
    if (run.times.empty()) return {};
    const TimeParts parts = parts_of(run.times);
    std::string words = format(
        "<p class=\"dim\">From the traces of %s: computation %.1f%%, of it %.1f%% while messages "
        "travel; waiting for messages %.1f%%; none of these %.1f%%. ",
        report::counted(static_cast<int64_t>(run.times.size()), "rank", "ranks").c_str(),
        (parts.computing + parts.overlapped) * 100, parts.overlapped * 100, parts.waiting * 100,
        parts.rest * 100);
    if (parts.hidden > 0)
      words +=
          format("%.0f%% of the time of messages lies behind computation. ", parts.hidden * 100);
    if (parts.step_us > 0) words += format("A step took %.4g ms.", parts.step_us / 1000);
    return titled("Where the time of a step goes",
                  "<div class=\"keep\">" + words + "</p>" + times_picture(run.times) + "</div>\n");
  }

  std::string experts(const RunRecord& run) {
    if (!run.expert_load) return {};
    return titled("Experts", drawn(run, "expert_load.json",
                                   [&] { return experts_picture(*run.expert_load); }));
  }

  std::string checkpoints(const RunRecord& run) const {
    if (run.checkpoints.empty()) return {};
    Rows rows = {{"step", "saved", "strategy", "ranks", "learning rate", "size", "state"}};
    for (const checkpoint::Listed& one : run.checkpoints) {
      std::string state = one.meta ? "<span class=\"state saved\">complete</span>"
                                   : "<span class=\"state fault\">damaged</span>";
      if (one.latest) state += ", latest";
      if (one.best) state += ", best";
      if (!one.meta) state += "<br><span class=\"dim\">" + escaped(one.found.problem) + "</span>";
      rows.push_back({report::human_count(one.found.step), one.meta ? when(one.meta->created) : "-",
                      one.meta ? one.meta->strategy : "-",
                      one.meta ? std::to_string(one.meta->world_size) : "-",
                      one.meta ? short_number(one.meta->lr) : "-",
                      one.meta ? report::human_bytes(one.bytes) : "-", Html::markup(state)});
    }
    return titled("Checkpoints", html_table(rows, {0, 3, 4, 5}));
  }

  std::string settings(const RunRecord& run) const {
    if (run.settings.empty()) return {};
    Rows rows = {{"key", "value"}};
    for (const config::Setting& setting : run.settings)
      rows.push_back({code(setting.key), code(setting.value)});
    // On paper what differs is enough.
    return std::string(many_ ? "<div class=\"screen\">" : "<div>") +
           titled("Configuration", "<details><summary>All " + std::to_string(run.settings.size()) +
                                       " keys, as they were resolved</summary>" +
                                       html_table(rows, {}, "settings") + "</details>\n") +
           "</div>\n";
  }

  std::string events() const {
    constexpr size_t kMost = 400;
    struct Row {
      size_t run;
      const Event* event;
      std::string time;  // of one without: that of the one before it
    };
    std::vector<Row> all;
    size_t saves = 0;
    for (size_t i = 0; i < runs_.size(); ++i) {
      std::string time;
      for (const Event& event : runs_[i].events) {
        if (!event.time.empty()) time = event.time;
        event.kind == Event::Kind::saved ? void(++saves) : all.push_back({i, &event, time});
      }
    }
    if (all.empty()) return {};
    std::stable_sort(all.begin(), all.end(),
                     [](const Row& a, const Row& b) { return a.time < b.time; });
    Rows rows = {{"time", "after step", "what", ""}};
    if (many_) rows[0].insert(rows[0].begin(), "run");
    std::vector<const Event*> events;
    for (const Row& row : all) events.push_back(row.event);
    const std::vector<bool> shown = shown_events(events, kMost);
    int64_t left_out = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      if (!shown[i]) {
        ++left_out;
        if (i + 1 < all.size() && !shown[i + 1]) continue;
        rows.emplace_back(rows[0].size());
        rows.back().back() = dim(report::human_count(left_out) + " more are in run.log");
        left_out = 0;
        continue;
      }
      const Event& event = *all[i].event;
      rows.push_back({event.time.empty() ? "-" : when(event.time), report::human_count(event.step),
                      kind_text(event.kind),
                      Html::markup("<pre>" + escaped(event.text) + "</pre>")});
      if (many_) rows.back().insert(rows.back().begin(), bold(letter_of(all[i].run)));
    }
    std::string out = "<h2>What happened</h2>\n";
    if (saves > 0)
      out += "<p class=\"dim\">Beside " +
             report::counted(static_cast<int64_t>(saves), "save", "saves") +
             " of checkpoints.</p>\n";
    return out +
           html_table(rows, many_ ? std::vector<size_t>{2} : std::vector<size_t>{1}, "events");
  }

  // What the ranks' last collectives say of an end in an error.
  std::string verdicts() const {
    std::string out;
    for (size_t i = 0; i < runs_.size(); ++i) {
      const RunRecord& run = runs_[i];
      if (run.verdict.sentences.empty()) continue;
      std::string items;
      for (const std::string& sentence : run.verdict.sentences)
        items += "<li>" + escaped(sentence) + "</li>\n";
      out += (many_ ? "<p>" + called(i) + "</p>\n" : "") + "<ul class=\"verdict\">" + items +
             "</ul>\n<p class=\"dim\">The last collectives of each rank are in <code>" +
             escaped((run.folder / postmortem::kFolder).string()) + "</code>.</p>\n";
    }
    return out.empty() ? "" : "<h2>Where the ranks were at the end</h2>\n" + out;
  }

  const std::vector<RunRecord>& runs_;
  bool many_;
  std::vector<std::string> found_;  // problems met while drawing
};

}  // namespace

std::string html_page(const std::vector<RunRecord>& runs, const std::string& made) {
  return Page(runs).html(made);
}

}  // namespace meshwright::runs
