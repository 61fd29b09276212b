#include <algorithm>

#include "engine/job/boxes.h"
#include "engine/job/render.h"

namespace meshwright::render {
namespace {

using report::Style;
using report::Tone;

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
    if (std::count_if(mesh.axes().begin(), mesh.axes().end(),
                      [](const MeshAxis& axis) { return axis.size > 1; }) == 1)
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
    std::string text = "  " + line;
    while (!text.empty() && text.back() == ' ') text.pop_back();
    out += text + "\n";
  }
  return out;
}

}  // namespace meshwright::render
