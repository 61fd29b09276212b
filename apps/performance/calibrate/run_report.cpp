#include "apps/performance/calibrate/run_report.h"

#include <boost/json/value.hpp>
#include <string_view>
#include <vector>

#include "apps/doctor/rates.h"
#include "apps/performance/calibrate/report.h"
#include "apps/performance/steptime/figures.h"
#include "sdk/base/plain_text.h"

namespace meshwright::calibrate {
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
