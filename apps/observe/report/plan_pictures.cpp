// Memory and pipeline of a plan.
#include <algorithm>
#include <boost/json/array.hpp>
#include <stdexcept>

#include "apps/observe/report/block.h"
#include "apps/observe/report/html.h"
#include "apps/observe/report/pictures.h"
#include "sdk/base/pipeline_actions.h"

namespace meshwright::runs {

namespace json = boost::json;

std::string memory_picture(const json::object& plan, double measured) {
  if (plan.at("bytes").is_null()) return {};
  const json::object& bytes = plan.at("bytes").as_object();
  struct Row {
    std::string name;
    double value;
    const char* classes;
  };
  std::vector<Row> rows;
  double planned = 0;
  for (const char* key : {"weights", "gradients", "optimizer", "transient", "activations"}) {
    const json::value* value = bytes.if_contains(key);
    if (value == nullptr) continue;
    rows.push_back({key, value->to_number<double>(), "bar"});
    planned += rows.back().value;
  }
  rows.push_back({"planned, together", planned, "bar all"});
  if (measured > 0) rows.push_back({"measured peak", measured, "bar measured"});
  double most = 1;
  for (const Row& row : rows) most = std::max(most, row.value);
  constexpr double kLabel = 122, kBar = 220, kRow = 20;
  Block out{kLabel + kBar + 80, kRow * static_cast<double>(rows.size()), ""};
  for (size_t i = 0; i < rows.size(); ++i) {
    const double y = kRow * static_cast<double>(i), width = rows[i].value / most * kBar;
    out.svg += text_at(kLabel - 6, y + 14, rows[i].name, "right") +
               format("<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"13\"/>",
                      rows[i].classes, kLabel, y + 3, std::max(width, 0.5)) +
               text_at(kLabel + width + 6, y + 14, value_text(rows[i].value, true));
  }
  return picture("Bytes of rank 0", out);
}

namespace {

// "0F0,(0F1;7B0)OVERLAP_F_B": what actions_row() writes.
PipelineList list_of(std::string_view row) {
  PipelineList out;
  auto number = [&](size_t& i) {
    int64_t value = 0;
    while (i < row.size() && row[i] >= '0' && row[i] <= '9') value = value * 10 + (row[i++] - '0');
    return value;
  };
  for (size_t i = 0; i < row.size();) {
    if (row[i] < '0' || row[i] > '9') {
      // A name in capitals stands behind a pair.
      ++i;
      continue;
    }
    PipelineAction action;
    action.stage = number(i);
    if (i >= row.size() || std::string_view("FBIW").find(row[i]) == std::string_view::npos)
      throw std::invalid_argument("no action");
    action.kind = static_cast<PipelineAction::Kind>(row[i++]);
    action.micro_batch = number(i);
    out.push_back(action);
  }
  return out;
}

const char* kind_class(PipelineAction::Kind kind) {
  switch (kind) {
    case PipelineAction::Kind::forward:
      return "forward";
    case PipelineAction::Kind::backward:
      return "backward";
    case PipelineAction::Kind::input:
      return "input";
    case PipelineAction::Kind::weight:
      return "weight";
  }
  return "";
}

Block timeline(const PipelineLists& lists) {
  constexpr double kRow = 20, kLabel = 40;
  constexpr size_t kMostRanks = 16;
  const PipelineRun run = simulate_pipeline(lists);
  const double width = std::clamp(run.makespan * 18, 200.0, 900.0), unit = width / run.makespan;
  const bool names = unit >= 14;
  Block out{kLabel + width + 2, 0, ""};
  const size_t ranks = std::min(run.spans.size(), kMostRanks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    const double y = kRow * static_cast<double>(rank);
    out.svg += text_at(0, y + 14, "pp " + std::to_string(rank), "dim");
    for (const PipelineSpan& span : run.spans[rank]) {
      const double x = kLabel + span.start * unit, wide = (span.end - span.start) * unit;
      out.svg += format("<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.0f\">",
                        kind_class(span.action.kind), x, y + 1, wide - 1, kRow - 3) +
                 "<title>" + action_name(span.action) + "</title></rect>";
      if (names)
        out.svg += text_at(x + wide / 2 - 0.5, y + 14,
                           format("%c%lld", static_cast<char>(span.action.kind),
                                  static_cast<long long>(span.action.micro_batch)),
                           "middle small");
    }
  }
  out.height = kRow * static_cast<double>(ranks);
  return out;
}

}  // namespace

std::string pipeline_picture(const json::object& plan) {
  if (plan.at("pipeline").is_null()) return {};
  const json::object& pipeline = plan.at("pipeline").as_object();
  HtmlRows rows = {{"rank of pp", "stage", "layers"}};
  for (const json::value& value : pipeline.at("stages").as_array()) {
    const json::object& stage = value.as_object();
    const auto first = stage.at("first_layer").to_number<int64_t>(),
               count = stage.at("layers").to_number<int64_t>();
    rows.push_back({std::to_string(stage.at("rank").to_number<int64_t>()),
                    std::to_string(stage.at("index").to_number<int64_t>()),
                    count == 0   ? std::string("none")
                    : count == 1 ? std::to_string(first)
                                 : format("%lld to %lld", static_cast<long long>(first),
                                          static_cast<long long>(first + count - 1))});
  }
  PipelineLists lists;
  for (const json::value& row : pipeline.at("actions").as_array())
    lists.push_back(list_of(std::string_view(row.as_string())));
  const std::string schedule(pipeline.at("schedule").as_string());
  return "<div><p class=\"dim\">Pipeline, schedule " + escaped(schedule) +
         format(
             ": idle %.1f%% of the time, if all stages take as long. F forward, B backward, I "
             "its inputs' part, W its weights' part; the number is the micro-batch.</p>",
             pipeline.at("bubble").to_number<double>() * 100) +
         "<div class=\"wide\">" + picture("Timeline of schedule " + schedule, timeline(lists)) +
         "</div><details><summary>Stages</summary>" + html_table(rows, {0, 1}) +
         "</details></div>\n";
}

}  // namespace meshwright::runs
