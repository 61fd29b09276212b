#include "engine/job/render.h"
#include "sdk/base/words.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace meshwright::render {

using report::Style;
using report::Tone;

namespace {

struct Glyphs {
  const char *h, *v, *tl, *tr, *bl, *br, *dots;
};
Glyphs glyphs(const Style& style) {
  if (style.unicode) return {"─", "│", "┌", "┐", "└", "┘", "…"};
  return {"-", "|", "+", "+", "+", "+", ".."};
}

std::string repeat(const char* text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

}  // namespace

const char* dots(const Style& style) { return glyphs(style).dots; }

size_t width_of(const Lines& lines) {
  size_t width = 0;
  for (const std::string& line : lines) width = std::max(width, report::display_width(line));
  return width;
}

Lines frame(const Style& style, Tone tone, const std::string& title, const Lines& inside) {
  Glyphs g = glyphs(style);
  size_t width = std::max(width_of(inside), report::display_width(title) + 2);
  auto tinted = [&](const std::string& text) { return report::paint(style, tone, text); };
  Lines out = {tinted(std::string(g.tl) + g.h + " " + title + " " +
                      repeat(g.h, width - report::display_width(title) - 1) + g.tr)};
  for (const std::string& line : inside)
    out.push_back(tinted(g.v) + " " + report::pad(line, width) + " " + tinted(g.v));
  out.push_back(tinted(std::string(g.bl) + repeat(g.h, width + 2) + g.br));
  return out;
}

Lines flow(const std::vector<Lines>& blocks, size_t width) {
  Lines out;
  for (size_t i = 0; i < blocks.size();) {
    size_t j = i, used = 0, height = 0;
    while (j < blocks.size() && (j == i || used + 2 + width_of(blocks[j]) <= width)) {
      used += width_of(blocks[j]) + (j > i ? 2 : 0);
      height = std::max(height, blocks[j].size());
      ++j;
    }
    for (size_t row = 0; row < height; ++row) {
      std::string line;
      for (size_t k = i; k < j; ++k) {
        std::string part = row < blocks[k].size() ? blocks[k][row] : std::string();
        line += report::pad(part, width_of(blocks[k])) + (k + 1 < j ? "  " : "");
      }
      out.push_back(line);
    }
    i = j;
  }
  return out;
}

std::vector<int64_t> shown(int64_t size, int64_t most, int64_t mine) {
  std::vector<int64_t> out;
  if (size <= most) {
    for (int64_t i = 0; i < size; ++i) out.push_back(i);
    return out;
  }
  if (mine + 2 < most || mine == size - 1) {
    for (int64_t i = 0; i + 2 < most; ++i) out.push_back(i);
    out.insert(out.end(), {-1, size - 1});
    return out;
  }
  if (most < 5) return {-1, mine, -1};
  for (int64_t i = 0; i + 4 < most; ++i) out.push_back(i);
  out.insert(out.end(), {-1, mine});
  if (mine + 2 < size) out.push_back(-1);
  out.push_back(size - 1);
  return out;
}

namespace {

struct Painter {
  const Style& style;
  const plan::JobPlan& plan;
  const Mesh& mesh;
  std::vector<int64_t> mine;  // coordinates of the chosen rank
  std::vector<int64_t> at;    // coordinates being drawn
  size_t digits;

  int64_t rank() const {
    int64_t place = 0;
    for (size_t i = 0; i < at.size(); ++i) place = place * mesh.axes()[i].size + at[i];
    return mesh.rank_at(place);
  }
  std::string cell() const {
    int64_t r = rank();
    if (r == plan.rank)
      return report::paint(style, Tone::bold,
                           report::pad_left("[" + std::to_string(r) + "]", digits + 2));
    return report::pad_left(std::to_string(r), digits + 1) + " ";
  }

  // Ranks of the two innermost axes of size > 1 as a grid: rows share a shard, columns are the
  // innermost axis.
  Lines grid(size_t outer, size_t inner, size_t width) {
    const std::string gap = std::string("  ") + dots(style) + " ";
    const MeshAxis* row_axis = outer < mesh.axes().size() ? &mesh.axes()[outer] : nullptr;
    const MeshAxis* column_axis = inner < mesh.axes().size() ? &mesh.axes()[inner] : nullptr;
    std::vector<int64_t> rows =
        row_axis != nullptr ? shown(row_axis->size, 8, mine[outer]) : std::vector<int64_t>{0};
    size_t label = row_axis != nullptr
                       ? row_axis->name.size() + 1 + std::to_string(row_axis->size - 1).size()
                       : 0;
    size_t taken = label + 2 + (column_axis != nullptr ? column_axis->name.size() : 0);
    auto most = std::clamp<int64_t>((static_cast<int64_t>(width) - static_cast<int64_t>(taken)) /
                                        static_cast<int64_t>(digits + 2),
                                    3, 8);
    std::vector<int64_t> columns = column_axis != nullptr
                                       ? shown(column_axis->size, most, mine[inner])
                                       : std::vector<int64_t>{0};
    Lines out;
    if (column_axis != nullptr) {
      std::string head(label + (label > 0 ? 1 : 0), ' ');
      for (int64_t c : columns)
        head += c < 0 ? gap : report::pad_left(std::to_string(c), digits + 1) + " ";
      out.push_back(
          report::paint(style, Tone::cyan, report::pad(head, 0) + " " + column_axis->name));
    }
    for (int64_t r : rows) {
      if (r < 0) {
        out.push_back(std::string(label, ' ') + " " + report::pad_left(dots(style), digits + 1));
        continue;
      }
      if (row_axis != nullptr) at[outer] = r;
      std::string line =
          row_axis != nullptr
              ? report::paint(style, Tone::green,
                              report::pad(row_axis->name + " " + std::to_string(r), label)) +
                    " "
              : "";
      for (int64_t c : columns) {
        if (column_axis != nullptr && c >= 0) at[inner] = c;
        line += c < 0 ? gap : cell();
      }
      out.push_back(line);
    }
    return out;
  }

  // Frames for the outer axes, a grid inside.
  Lines block(const std::vector<size_t>& axes, size_t level, size_t width) {
    size_t left = axes.size() - level;
    if (left <= 2) {
      size_t none = mesh.axes().size();
      if (left == 0) return grid(none, none, width);
      if (left == 1)
        return axes.size() == 1 && mesh.axes()[axes[level]].size <= 9
                   ? grid(axes[level], none, width)
                   : single(axes[level], width);
      return grid(axes[level], axes[level + 1], width);
    }
    const MeshAxis& axis = mesh.axes()[axes[level]];
    // In a large world only the chosen rank's block is opened up; the others look alike.
    bool large = mesh.size() > 128;
    std::vector<int64_t> indices =
        large ? std::vector<int64_t>{mine[axes[level]]} : shown(axis.size, 5, mine[axes[level]]);
    std::vector<Lines> parts;
    for (int64_t index : indices) {
      if (index < 0) {
        parts.push_back({"", std::string("   ") + dots(style) + "   "});
        continue;
      }
      at[axes[level]] = index;
      Tone tone = axis.name == "pp"             ? Tone::magenta
                  : axis.name == "dp_replicate" ? Tone::yellow
                                                : Tone::blue;
      parts.push_back(frame(style, tone, axis.name + " " + std::to_string(index),
                            block(axes, level + 1, width - 4)));
    }
    if (large) {
      parts.front().push_back(report::paint(
          style, Tone::dim,
          std::string(dots(style)) + " and " + std::to_string(axis.size - 1) + " more alike"));
      return parts.front();
    }
    return flow(parts, width);
  }

  // One axis alone: its ranks in a row, broken where the width ends.
  Lines single(size_t axis, size_t width) {
    Lines out;
    std::string line;
    for (int64_t index : shown(mesh.axes()[axis].size, 64, mine[axis])) {
      std::string text = std::string(" ") + dots(style) + " ";
      if (index >= 0) {
        at[axis] = index;
        text = cell();
      }
      if (report::display_width(line) + report::display_width(text) > width) {
        out.push_back(line);
        line.clear();
      }
      line += text;
    }
    out.push_back(line);
    out.insert(out.begin(), report::paint(style, Tone::green,
                                          mesh.axes()[axis].name + ": one rank after the other"));
    return out;
  }
};

Lines paint_mesh(const Style& style, const plan::JobPlan& plan, const Mesh& mesh, size_t width) {
  std::vector<size_t> axes;
  for (size_t i = 0; i < mesh.axes().size(); ++i)
    if (mesh.axes()[i].size > 1) axes.push_back(i);
  Painter painter{style,
                  plan,
                  mesh,
                  mesh.coordinates(plan.rank),
                  std::vector<int64_t>(mesh.axes().size(), 0),
                  std::to_string(plan.world_size - 1).size()};
  return painter.block(axes, 0, width);
}

// The same ranks once more as the experts see them: beside the device mesh where both fit, else
// below.
Lines with_experts(const Style& style, const plan::JobPlan& plan, Lines device, const Mesh& moe,
                   size_t width) {
  constexpr size_t kGap = 3, kNarrowest = 24;
  auto titled = [&](const char* title, Lines lines) {
    lines.insert(lines.begin(), report::paint(style, Tone::dim, title));
    return lines;
  };
  Lines experts = titled("expert mesh", paint_mesh(style, plan, moe, width));
  size_t rest = width - std::min(width, width_of(experts) + kGap);
  if (width_of(device) > rest && rest >= kNarrowest) {
    // A row of ranks breaks where it must; anything else keeps its shape and does not fit.
    const Mesh& mesh = *plan.mesh.device_mesh;
    if (std::ranges::count_if(mesh.axes(), [](const MeshAxis& axis) { return axis.size > 1; }) == 1)
      device = paint_mesh(style, plan, mesh, rest);
  }
  device = titled("device mesh", std::move(device));
  if (width_of(device) <= rest) {
    device.front() = report::pad(device.front(), width_of(device) + kGap - 2);  // flow() adds 2
    return flow({device, experts}, width);
  }
  device.emplace_back();
  device.insert(device.end(), experts.begin(), experts.end());
  return device;
}

}  // namespace

std::string draw_mesh(const Style& style, const plan::JobPlan& plan) {
  std::string out;
  size_t width = static_cast<size_t>(std::max(40, style.width)) - 2;
  // Under ddp there is no mesh; its replicas are drawn as one axis.
  const Mesh replicas({{"dp", std::max<int64_t>(1, plan.world_size)}});
  const Mesh& mesh = plan.mesh.device_mesh ? *plan.mesh.device_mesh : replicas;
  if (!mesh.place_of(plan.rank))
    return "  (rank " + std::to_string(plan.rank) + " is outside of the mesh)\n";
  Lines lines = paint_mesh(style, plan, mesh, width);
  const std::optional<Mesh>& moe = plan.mesh.moe_mesh;
  if (moe && moe->place_of(plan.rank) && plan.mesh.device_mesh)
    lines = with_experts(style, plan, std::move(lines), *moe, width);
  for (const std::string& line : lines) {
    const std::string text = "  " + line;
    out += text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

namespace {

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
    auto next = std::ranges::partition_point(
        spans, [&](const PipelineSpan& span) { return std::lround(span.end) <= begin; });
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
    return out.substr(0, out.find_last_not_of(' ') + 1);
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
      text::counted(micro_batches, "micro-batch", "es") + " a run, of which the ranks idle " +
      std::to_string(std::lround(100 * run.bubble)) + "%. " +
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
