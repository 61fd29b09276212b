#include "engine/job/pipeline_timeline.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/job/boxes.h"

namespace meshwright::render {
namespace {

using report::Style;
using report::Tone;
using Kind = PipelineAction::Kind;

// Rows of cells below each other; of a longer run the first and the last half of these are drawn.
constexpr int64_t kMostParts = 4;
constexpr int64_t kMostRanks = 8;

Tone tone_of(Kind kind) {
  switch (kind) {
    case Kind::forward:
      return Tone::blue;
    case Kind::backward:
      return Tone::green;
    case Kind::input:
      return Tone::cyan;
    case Kind::weight:
      return Tone::yellow;
  }
  return Tone::plain;
}

class Timeline {
 public:
  Timeline(const Style& style, const PipelineRun& run, int64_t mine, const std::string& label)
      : style_(style), run_(run), units_(std::lround(run.makespan)) {
    ranks_ = shown(static_cast<int64_t>(run.spans.size()), kMostRanks, mine);
    PipelineAction widest;
    for (const std::vector<PipelineSpan>& spans : run.spans)
      for (const PipelineSpan& span : spans) {
        names_stages_ = names_stages_ || span.action.stage != spans.front().action.stage;
        widest.stage = std::max(widest.stage, span.action.stage);
        widest.micro_batch = std::max(widest.micro_batch, span.action.micro_batch);
      }
    cell_ = name(widest).size() + 1;
    for (int64_t rank : ranks_) {
      rows_.push_back(rank < 0 ? std::string(" ") + dots(style)
                               : "pp " + std::to_string(rank) +
                                     (rank == mine ? " [" + label + "]" : std::string()));
      title_ = std::max(title_, report::display_width(rows_.back()) + 1);
    }
  }

  std::string draw() const {
    const size_t room = static_cast<size_t>(style_.width) - title_;
    const auto columns = static_cast<int64_t>(std::max<size_t>(room / cell_, 1));
    const int64_t parts = (units_ + columns - 1) / columns;
    std::string out;
    for (int64_t part = 0; part < parts; ++part) {
      if (parts > kMostParts && part == kMostParts / 2) {
        part = parts - kMostParts / 2;
        out += std::string(title_, ' ') + dots(style_) + "\n";
      }
      out += draw_part(part * columns, std::min(units_, (part + 1) * columns));
    }
    return out;
  }

 private:
  std::string name(const PipelineAction& action) const {
    const std::string full = action_name(action);
    return names_stages_ ? full : full.substr(std::to_string(action.stage).size());
  }

  std::string draw_part(int64_t begin, int64_t end) const {
    std::string out = report::paint(style_, Tone::dim,
                                    report::pad("time", title_) + std::to_string(begin) + " to " +
                                        std::to_string(end)) +
                      "\n";
    for (size_t row = 0; row < ranks_.size(); ++row) {
      std::string line = rows_[row];
      if (ranks_[row] >= 0)
        line = report::pad(report::paint(style_, Tone::magenta, line), title_) +
               cells(static_cast<size_t>(ranks_[row]), begin, end);
      out += line + "\n";
    }
    return out;
  }

  std::string repeat(const char* text, size_t count) const {
    std::string out;
    for (size_t i = 0; i < count; ++i) out += text;
    return out;
  }

  // Columns `begin` to `end` of a rank: names, lines as far as an action lasts, points between.
  std::string cells(size_t rank, int64_t begin, int64_t end) const {
    const std::vector<PipelineSpan>& spans = run_.spans[rank];
    std::string out;
    auto idle = [&](int64_t until) {
      std::string points;
      for (; begin < until; ++begin)
        points += std::string(style_.unicode ? "·" : ".") + std::string(cell_ - 1, ' ');
      if (!points.empty()) out += report::paint(style_, Tone::dim, points);
    };
    auto next = std::partition_point(spans.begin(), spans.end(), [&](const PipelineSpan& span) {
      return std::lround(span.end) <= begin;
    });
    for (; next != spans.end() && std::lround(next->start) < end; ++next) {
      const int64_t start = std::lround(next->start),
                    stop = std::min<int64_t>(std::lround(next->end), end);
      idle(std::max(start, begin));
      const std::string text = start < begin ? std::string() : name(next->action);
      const size_t width = static_cast<size_t>(stop - begin) * cell_ - 1;
      out += report::paint(
                 style_, tone_of(next->action.kind),
                 text + repeat(style_.unicode ? "─" : "-", width - std::min(width, text.size()))) +
             " ";
      begin = stop;
    }
    idle(end);
    while (!out.empty() && out.back() == ' ') out.pop_back();
    return out;
  }

  const Style& style_;
  const PipelineRun& run_;
  int64_t units_;
  std::vector<int64_t> ranks_;     // those drawn, -1 for a gap
  std::vector<std::string> rows_;  // their titles
  size_t title_ = 0, cell_ = 0;    // columns
  bool names_stages_ = false;      // a rank has several
};

}  // namespace

std::string draw_timeline(const Style& style, const PipelineRun& run, int64_t mine,
                          const std::string& label) {
  return Timeline(style, run, mine, label).draw();
}

std::string pipeline_timeline(const Style& style, const plan::JobPlan& plan) {
  const int64_t micro_batches = pipeline_micro_batches(plan.shared.pipeline);
  if (micro_batches < 1) return "";
  const PipelineLists lists = plan_actions(*plan.pipeline, plan.shared.pipeline, micro_batches);
  const PipelineRun run = simulate_pipeline(lists);
  bool split = false, several = false;
  int64_t example = 4;  // a stage
  for (const PipelineList& list : lists)
    for (const PipelineAction& action : list) {
      split = split || action.kind == Kind::input;
      several = several || action.stage != list.front().stage;
    }
  if (several) example = std::min(example, static_cast<int64_t>(plan.pipeline->stages.size()) - 1);
  const std::string stage = std::to_string(example);
  std::string words =
      report::counted(micro_batches, "micro-batch", "micro-batches") +
      " a run, of which the ranks idle " + std::to_string(std::lround(100 * run.bubble)) + "%. " +
      (several ? stage + "F0 is stage " + stage + ", micro-batch 0: " : "F0 is micro-batch 0: ") +
      "F forward, B backward" + (split ? ", in halves I for the input and W for the weights" : "") +
      ".";
  std::string out;
  for (const std::string& line : report::wrap(words, static_cast<size_t>(style.width)))
    out += line + "\n";
  return out + draw_timeline(style, run, plan.mesh.device_mesh->coordinate(plan.rank, "pp"),
                             std::to_string(plan.rank));
}

}  // namespace meshwright::render
