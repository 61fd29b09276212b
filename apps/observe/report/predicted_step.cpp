#include <cmath>

#include "apps/observe/report/report.h"
#include "apps/observe/report/scale.h"

namespace meshwright::runs {
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

}  // namespace meshwright::runs
