#include "apps/performance/calibrate/report.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <boost/math/tools/toms748_solve.hpp>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/doctor/links.h"
#include "apps/performance/steptime/machine.h"
#include "meshwright/error.h"
#include "sdk/base/plain_text.h"
#include "sdk/base/terminal/progress.h"
#include "sdk/base/words.h"

namespace meshwright::calibrate {

namespace {

using steptime::Machine;
using steptime::Prediction;

constexpr double kLeastExposed = 0.05;  // of the predicted step; of less a factor is noise
constexpr int kRounds = 4;              // of the two factors in turn

// The factor at which `seconds`, which falls with it, comes to `target`; nullopt: none does.
std::optional<double> solve(const std::function<double(double)>& seconds, double target) {
  const double most = std::log2(kMostFactor);
  auto above = [&](double log) { return seconds(std::exp2(log)) - target; };
  const double slow = above(-most), fast = above(most);
  if (!(slow >= 0 && fast <= 0)) return std::nullopt;
  std::uintmax_t calls = 60;
  const auto near = [](double a, double b) { return std::abs(b - a) < 1e-4; };
  const auto [a, b] =
      boost::math::tools::toms748_solve(above, -most, most, slow, fast, near, calls);
  return std::exp2((a + b) / 2);
}

std::string times_text(double factor) { return text::format("%.3g times", factor); }

class RunFit {
 public:
  RunFit(const Machine& machine, const RunTime& run,
         const std::function<Prediction(const Machine&)>& predict)
      : machine_(machine), run_(run), predict_(predict) {}

  FromRun fit(const std::string& when) {
    FromRun out;
    out.left = why_left();
    std::optional<Factors> found;
    if (out.left.empty()) {
      found = both();
      if (!found)
        out.left = "no factor of the network from 1/4 to 4 explains that rank 0 communicated for " +
                   doctor::time_text(*run_.exposed) + " of a step";
    }
    if (found) {
      out.network = found->network;
    } else {
      found = computing(1);
      if (!found) refuse();
    }
    out.computing = found->computing;
    set_figures(out, when);
    return out;
  }

 private:
  struct Factors {
    double computing = 1, network = 1;
  };

  Prediction at(const Factors& f) const {
    return predict_(scaled(machine_, f.computing, f.network));
  }

  std::string why_left() const {
    if (!run_.exposed) return "the run does not say how long ranks waited for each other";
    if (run_.waits_for_work) return "ranks of a pipeline wait for each other's work, too";
    const Prediction before = predict_(machine_);
    return exposed_of(before.parts) < kLeastExposed * before.seconds
               ? "exchanges that nothing hides are predicted to be under a twentieth of a step"
               : "";
  }

  std::optional<Factors> computing(double network) const {
    const std::optional<double> found =
        solve([&](double c) { return at({c, network}).seconds; }, run_.seconds);
    return found ? std::optional(Factors{*found, network}) : std::nullopt;
  }

  // What one factor changes of the other's share is little: a few turns settle it.
  std::optional<Factors> both() const {
    Factors now;
    for (int round = 0; round < kRounds; ++round) {
      const std::optional<double> network =
          solve([&](double n) { return exposed_of(at({now.computing, n}).parts); }, *run_.exposed);
      if (!network) return std::nullopt;
      const std::optional<Factors> next = computing(*network);
      if (!next) return std::nullopt;
      now = *next;
    }
    return now;
  }

  [[noreturn]] void refuse() const {
    const Prediction before = predict_(machine_);
    const bool slower = run_.seconds > before.seconds;
    const double last = slower ? 1 / kMostFactor : kMostFactor;
    Error error(ErrorCode::out_of_range,
                "a step of " + run_.run + " took " + doctor::time_text(run_.seconds) + ", and " +
                    doctor::time_text(before.seconds) + " are predicted with " + run_.machine +
                    ": no factor of its computing from 1/4 to 4 explains that (with " +
                    (slower ? "1/4" : "4") + " it would be " +
                    doctor::time_text(at({last, 1}).seconds) + ")");
    error.key("--from");
    error.help(slower
                   ? "name the machine the run was on with --machine, or run it again while "
                     "nothing else has its cores and devices"
                   : "name the machine the run was on with --machine: this one is far slower, or "
                     "its launches or network alone take longer than the step");
    throw error.help("meshwright calibrate --nproc N measures every figure of this machine");
  }

  void set_figures(FromRun& out, const std::string& when) const {
    Machine before = machine_;
    Machine& after = out.fitted.machine;
    after = scaled(machine_, out.computing, out.network.value_or(1));
    out.fitted.sources = machine_.sources;
    const std::vector<steptime::Figure> were = steptime::figures_of(before),
                                        are = steptime::figures_of(after);
    for (size_t i = 0; i < were.size(); ++i) {
      const auto source = out.fitted.sources.find(were[i].key());
      if (source == out.fitted.sources.end() || *were[i].to == *are[i].to) continue;
      const std::string key = were[i].key(), change = times_text(*are[i].to / *were[i].to) +
                                                      " that of " + run_.machine + ", " + when;
      // The run says nothing of a peak that it does not use.
      const bool unused =
          key.starts_with("peak.") && key != (run_.halves ? "peak.bf16" : "peak.fp32");
      const std::string from = "from a run: " + run_.run + ", " + change;
      if (unused && source->second.starts_with("guessed"))
        source->second = "guessed: as the peak that " + run_.run + " uses, " + change;
      else if (source->second.starts_with(steptime::kAtBound))  // and rough for as long as it is
        source->second = std::string(steptime::kAtBound) + ", then " + from;
      else
        source->second = from;
    }
  }

  const Machine& machine_;
  const RunTime& run_;
  const std::function<Prediction(const Machine&)>& predict_;
};

}  // namespace

Machine scaled(Machine machine, double computing, double network) {
  if (machine.overlap.adds) {
    for (double* figure : {&machine.bandwidth, &machine.peak_bf16, &machine.peak_fp8,
                           &machine.peak_fp32, &machine.peak_tf32})
      *figure *= computing;
    for (double* figure :
         {&machine.host.layer_forward, &machine.host.layer_backward, &machine.host.fixed})
      *figure /= computing;
  } else {
    Machine::Rate& rate = machine.rate;
    for (double* figure : {&rate.product, &rate.elementwise, &rate.attention, &rate.attention_fa2,
                           &rate.attention_triton})
      *figure = std::min(1.0, *figure * computing);
    rate.optimizer = std::min(10.0, rate.optimizer * computing);
  }
  Machine::Network& net = machine.network;
  for (double* figure : {&net.bus, &net.nic, &net.send_inside, &net.send_outside})
    *figure *= network;
  for (double* figure : {&net.step_inside, &net.step_outside}) *figure /= network;
  // One that the file does not say will not be in the next one either.
  if (machine.sources.contains("network.send_latency_inside")) net.send_latency_inside /= network;
  if (machine.sources.contains("network.send_latency_outside")) net.send_latency_outside /= network;
  return machine;
}

double exposed_of(const steptime::Parts& parts) {
  return parts.tp + parts.cp + parts.ep + parts.shard;
}

FromRun fit_run(const Machine& machine, const RunTime& run,
                const std::function<Prediction(const Machine&)>& predict, const std::string& when) {
  return RunFit(machine, run, predict).fit(when);
}

namespace {

std::string sign(double error) { return text::format("%+.0f%%", 100 * error); }

}  // namespace

std::string figure_text(const steptime::Figure& figure) {
  const std::string_view table = figure.table, name = figure.name;
  const double value = *figure.to;
  if (table == "peak") return text::short_number(value / 1e12, 4) + " TFLOP/s";
  if (name == "memory" || name == "outside") return report::human_bytes(std::llround(value));
  if (name.starts_with("step_") || name.starts_with("send_latency_") || table == "host")
    return doctor::time_text(value);
  if (name == "bandwidth" || name == "bus" || name == "nic" || name.starts_with("send_"))
    return doctor::rate_text(value);
  return text::short_number(value, 4);
}

std::string as_machine(const std::string& file) {
  return (file.find('/') == std::string::npos && !file.ends_with(".toml") ? "./" : "") + file;
}

std::string Report::text(const report::Style& style) const {
  steptime::Machine machine = fitted.machine;
  std::string out = report::paint(style, report::Tone::bold, machine.name) + ", " +
                    report::counted(std::llround(measured.ranks), "rank", "ranks") + " on " +
                    report::counted(std::llround(measured.hosts), "host", "hosts") + "\n\n";
  std::vector<std::vector<std::string>> points = {{"MEASURED", "size", "seconds", "model"}};
  for (const Point& point : fitted.points)
    points.push_back(
        {point.what, point.size, doctor::time_text(point.measured), sign(point.error())});
  const std::vector<size_t> right = {2, 3};
  out += report::table(style, points, right) + "\n";
  std::string bounds;
  std::vector<std::vector<std::string>> figures = {{"FIGURE", "value", "source"}};
  for (const steptime::Figure& figure : steptime::figures_of(machine)) {
    const auto source = fitted.sources.find(figure.key());
    if (source == fitted.sources.end()) continue;
    const bool bound = fitted.at_bound(figure.key());
    if (bound) bounds += (bounds.empty() ? "" : ", ") + figure.key();
    figures.push_back({figure.key(), figure_text(figure),
                       bound                           ? "measured, at a bound: rough"
                       : fitted.measured(figure.key()) ? "measured"
                                                       : source->second});
  }
  out += report::table(style, figures) + "\n";
  if (!bounds.empty())
    for (const std::string& line :
         report::wrap("Left at the bound of what they may be, and rough: " + bounds +
                          ". What was measured lies beyond: something else ran meanwhile, or the "
                          "model knows nothing of it. Measure again while nothing else runs.",
                      static_cast<size_t>(std::max(style.width, 20))))
      out += line + "\n";
  return out + file + " is written, in " + report::human_duration(seconds) +
         ". meshwright plan JOB.toml --machine " + as_machine(file) + "\n";
}

boost::json::object Report::json() const {
  steptime::Machine machine = fitted.machine;
  boost::json::object figures;
  for (const steptime::Figure& figure : steptime::figures_of(machine)) {
    const auto source = fitted.sources.find(figure.key());
    if (source == fitted.sources.end()) continue;
    figures[figure.key()] = {{"value", *figure.to},
                             {"source", source->second},
                             {"measured", fitted.measured(figure.key())},
                             {"at_bound", fitted.at_bound(figure.key())}};
  }
  boost::json::array points;
  for (const Point& point : fitted.points)
    points.push_back({{"what", point.what},
                      {"size", point.size},
                      {"seconds", point.measured},
                      {"predicted", point.predicted}});
  return {{"file", file},
          {"name", machine.name},
          {"ranks", std::llround(measured.ranks)},
          {"hosts", std::llround(measured.hosts)},
          {"seconds", seconds},
          {"figures", figures},
          {"points", points}};
}

namespace {

constexpr std::string_view kFrom = "from a run";

std::string off(double predicted, double measured) {
  return text::format("%+.1f%%", 100 * (predicted / measured - 1));
}

struct Change {
  std::string key, was, is, source;
  double value_was = 0, value = 0;
};
std::vector<Change> changes_of(const RunReport& report) {
  steptime::Machine before = report.machine, after = report.found.fitted.machine;
  const std::vector<steptime::Figure> were = steptime::figures_of(before),
                                      are = steptime::figures_of(after);
  std::vector<Change> out;
  for (size_t i = 0; i < were.size(); ++i) {
    const auto source = report.found.fitted.sources.find(were[i].key());
    if (source == report.found.fitted.sources.end() || *were[i].to == *are[i].to) continue;
    out.push_back({were[i].key(), figure_text(were[i]), figure_text(are[i]),
                   source->second.starts_with(kFrom) ? std::string(kFrom) : source->second,
                   *were[i].to, *are[i].to});
  }
  return out;
}

boost::json::object step_json(const steptime::Prediction& prediction) {
  return {{"seconds", prediction.seconds}, {"exposed_seconds", exposed_of(prediction.parts)}};
}

}  // namespace

std::string RunReport::text(const report::Style& style) const {
  std::string out = report::paint(style, report::Tone::bold, machine.name) + ", " + run.run + ", " +
                    report::counted(steps, "step", "steps") + "\n\n";
  std::vector<std::vector<std::string>> rows = {
      {"STEP", "seconds", "exchanges", "off"},
      {"measured", doctor::time_text(run.seconds),
       run.exposed ? doctor::time_text(*run.exposed) : "", ""}};
  auto add = [&](const std::string& with, const steptime::Prediction& of) {
    rows.push_back({"predicted with " + with, doctor::time_text(of.seconds),
                    doctor::time_text(exposed_of(of.parts)), off(of.seconds, run.seconds)});
  };
  add(run.machine, before);
  add(file, after);
  const std::vector<size_t> right = {1, 2, 3};
  out += report::table(style, rows, right) + "\n";
  std::vector<std::vector<std::string>> figures = {{"FIGURE", "was", "is", "source"}};
  for (const Change& change : changes_of(*this))
    figures.push_back({change.key, change.was, change.is, change.source});
  out += report::table(style, figures) + "\n";
  if (!found.network) out += "The figures of the network are left: " + found.left + ".\n";
  return out + file + " is written. meshwright plan JOB.toml --machine " + as_machine(file) + "\n";
}

boost::json::object RunReport::json() const {
  boost::json::object figures;
  for (const Change& change : changes_of(*this))
    figures[change.key] = {{"was", change.value_was},
                           {"value", change.value},
                           {"source", found.fitted.sources.at(change.key)}};
  boost::json::object factors = {{"computing", found.computing}, {"network", nullptr}};
  if (found.network) factors["network"] = *found.network;
  boost::json::object measured = {
      {"seconds", run.seconds}, {"exposed_seconds", nullptr}, {"steps", steps}};
  if (run.exposed) measured["exposed_seconds"] = *run.exposed;
  boost::json::object out = {{"file", file},
                             {"name", machine.name},
                             {"run", run.run},
                             {"machine", run.machine},
                             {"measured", measured},
                             {"before", step_json(before)},
                             {"after", step_json(after)},
                             {"factors", factors},
                             {"figures", figures},
                             {"network_left", nullptr}};
  if (!found.network) out["network_left"] = found.left;
  return out;
}

}  // namespace meshwright::calibrate
