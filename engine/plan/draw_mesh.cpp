#include <algorithm>
#include <map>

#include "engine/plan/draw.h"

namespace meshwright::plan {
namespace {

using report::Style;
using report::Tone;

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

using Lines = std::vector<std::string>;

size_t width_of(const Lines& lines) {
  size_t width = 0;
  for (const std::string& line : lines) width = std::max(width, report::display_width(line));
  return width;
}

// A frame with a title around some lines.
Lines frame(const Style& style, Tone tone, const std::string& title, const Lines& inside) {
  Glyphs g = glyphs(style);
  size_t width = std::max(width_of(inside), report::display_width(title) + 2);
  auto tinted = [&](const std::string& text) { return report::paint(style, tone, text); };
  Lines out = {tinted(std::string(g.tl) + g.h + " " + title + " " + repeat(g.h, width - report::display_width(title) - 1) + g.tr)};
  for (const std::string& line : inside) out.push_back(tinted(g.v) + " " + report::pad(line, width) + " " + tinted(g.v));
  out.push_back(tinted(std::string(g.bl) + repeat(g.h, width + 2) + g.br));
  return out;
}

// Blocks side by side as far as the width allows, then below.
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

// Which indices of an axis are drawn: all of a short one, the ends of a long one (-1 stands for the gap).
std::vector<int64_t> shown(int64_t size, int64_t most) {
  std::vector<int64_t> out;
  if (size <= most) {
    for (int64_t i = 0; i < size; ++i) out.push_back(i);
  } else {
    for (int64_t i = 0; i + 2 < most; ++i) out.push_back(i);
    out.push_back(-1);
    out.push_back(size - 1);
  }
  return out;
}

struct Painter {
  const Style& style;
  const JobPlan& plan;
  const Mesh& mesh;
  std::vector<int64_t> mine;  // coordinates of the chosen rank
  std::vector<int64_t> at;    // coordinates being drawn
  size_t digits;
  size_t room;

  int64_t rank() const {
    int64_t place = 0;
    for (size_t i = 0; i < at.size(); ++i) place = place * mesh.axes()[i].size + at[i];
    return mesh.rank_at(place);
  }
  std::string cell() const {
    int64_t r = rank();
    std::string text = report::pad_left(std::to_string(r), digits);
    if (r == plan.rank) return report::paint(style, Tone::bold, "[" + text + "]");
    return " " + text + " ";
  }

  // Ranks of the two innermost axes of size > 1 as a grid: rows share a shard, columns are the innermost axis.
  Lines grid(size_t outer, size_t inner, size_t width) {
    const Glyphs g = glyphs(style);
    const MeshAxis* row_axis = outer < mesh.axes().size() ? &mesh.axes()[outer] : nullptr;
    const MeshAxis* column_axis = inner < mesh.axes().size() ? &mesh.axes()[inner] : nullptr;
    std::vector<int64_t> rows = row_axis != nullptr ? shown(row_axis->size, 8) : std::vector<int64_t>{0};
    size_t label = row_axis != nullptr ? row_axis->name.size() + 1 + std::to_string(row_axis->size - 1).size() : 0;
    size_t taken = label + 2 + (column_axis != nullptr ? column_axis->name.size() : 0);
    auto most = std::clamp<int64_t>((static_cast<int64_t>(width) - static_cast<int64_t>(taken)) / static_cast<int64_t>(digits + 2), 3, 8);
    std::vector<int64_t> columns = column_axis != nullptr ? shown(column_axis->size, most) : std::vector<int64_t>{0};
    Lines out;
    if (column_axis != nullptr) {
      std::string head(label + (label > 0 ? 1 : 0), ' ');
      for (int64_t c : columns) head += c < 0 ? std::string("  ") + g.dots + " " : report::pad_left(std::to_string(c), digits + 1) + " ";
      out.push_back(report::paint(style, Tone::cyan, report::pad(head, 0) + " " + column_axis->name));
    }
    for (int64_t r : rows) {
      if (r < 0) {
        out.push_back(std::string(label, ' ') + " " + report::pad_left(g.dots, digits + 1));
        continue;
      }
      if (row_axis != nullptr) at[outer] = r;
      std::string line =
          row_axis != nullptr ? report::paint(style, Tone::green, report::pad(row_axis->name + " " + std::to_string(r), label)) + " " : "";
      for (int64_t c : columns) {
        if (column_axis != nullptr && c >= 0) at[inner] = c;
        line += c < 0 ? std::string("  ") + g.dots + " " : cell();
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
        return axes.size() == 1 && mesh.axes()[axes[level]].size <= 9 ? grid(axes[level], none, width) : single(axes[level], width);
      return grid(axes[level], axes[level + 1], width);
    }
    const MeshAxis& axis = mesh.axes()[axes[level]];
    // In a large world only the chosen rank's block is opened up; the others look alike.
    bool large = mesh.size() > 128;
    std::vector<int64_t> indices = large ? std::vector<int64_t>{mine[axes[level]]} : shown(axis.size, 4);
    std::vector<Lines> parts;
    for (int64_t index : indices) {
      if (index < 0) {
        parts.push_back({"", std::string("   ") + glyphs(style).dots + "   "});
        continue;
      }
      at[axes[level]] = index;
      Tone tone = axis.name == "pp" ? Tone::magenta : axis.name == "dp_replicate" ? Tone::yellow : Tone::blue;
      parts.push_back(frame(style, tone, axis.name + " " + std::to_string(index), block(axes, level + 1, width - 4)));
    }
    if (large) {
      parts.front().push_back(
          report::paint(style, Tone::dim, std::string(glyphs(style).dots) + " and " + std::to_string(axis.size - 1) + " more alike"));
      return parts.front();
    }
    return flow(parts, width);
  }

  // One axis alone: its ranks in a row, broken where the width ends.
  Lines single(size_t axis, size_t width) {
    Lines out;
    std::string line;
    for (int64_t index : shown(mesh.axes()[axis].size, 64)) {
      std::string text = std::string(" ") + glyphs(style).dots + " ";
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
    out.insert(out.begin(), report::paint(style, Tone::green, mesh.axes()[axis].name + ": one rank after the other"));
    return out;
  }
};

}  // namespace

std::string draw_mesh(const Style& style, const JobPlan& plan) {
  std::string out;
  size_t width = static_cast<size_t>(std::max(40, style.width)) - 2;
  // Under ddp there is no mesh; its replicas are drawn as one axis.
  const Mesh replicas({{"dp", std::max<int64_t>(1, plan.world_size)}});
  const Mesh& mesh = plan.mesh.device_mesh ? *plan.mesh.device_mesh : replicas;
  if (!mesh.place_of(plan.rank)) return "  (rank " + std::to_string(plan.rank) + " is outside of the mesh)\n";
  std::vector<size_t> axes;
  for (size_t i = 0; i < mesh.axes().size(); ++i)
    if (mesh.axes()[i].size > 1) axes.push_back(i);
  Painter painter{style,
                  plan,
                  mesh,
                  mesh.coordinates(plan.rank),
                  std::vector<int64_t>(mesh.axes().size(), 0),
                  std::to_string(plan.world_size - 1).size(),
                  width};
  for (const std::string& line : painter.block(axes, 0, width)) {
    std::string text = "  " + line;
    while (!text.empty() && text.back() == ' ') text.pop_back();
    out += text + "\n";
  }
  return out;
}

}  // namespace meshwright::plan
