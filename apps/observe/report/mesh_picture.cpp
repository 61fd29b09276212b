#include <algorithm>
#include <boost/json/array.hpp>

#include "apps/observe/report/block.h"
#include "apps/observe/report/html.h"
#include "apps/observe/report/pictures.h"
#include "engine/job/boxes.h"
#include "meshwright/mesh.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::runs {
namespace {

namespace json = boost::json;

constexpr double kCell = 24, kLine = 15, kPad = 8;

Block framed(const std::string& title, const Block& inside, const char* classes) {
  Block out{std::max(inside.width, text_width(title)) + 2 * kPad, inside.height + 2 * kPad + kLine,
            ""};
  out.svg =
      format("<rect class=\"frame %s\" x=\".5\" y=\".5\" width=\"%.1f\" height=\"%.1f\" rx=\"4\"/>",
             classes, out.width - 1, out.height - 1) +
      text_at(kPad, kLine, title, "title") + moved(inside, kPad, kPad + kLine);
  return out;
}

// Side by side as far as the picture is wide, then below.
Block flowing(const std::vector<Block>& blocks) {
  Block out;
  double x = 0, y = 0, row = 0;
  for (const Block& block : blocks) {
    if (x > 0 && x + block.width > kWidest) x = 0, y += row + kPad, row = 0;
    out.svg += moved(block, x, y);
    row = std::max(row, block.height);
    out.width = std::max(out.width, x + block.width);
    x += block.width + kPad;
  }
  out.height = y + row;
  return out;
}

class MeshDrawing {
 public:
  MeshDrawing(const Mesh& mesh, int64_t mine) : mesh_(mesh), mine_(mesh.coordinates(mine)) {
    at_.resize(mesh.axes().size());
    for (size_t i = 0; i < mesh.axes().size(); ++i)
      if (mesh.axes()[i].size > 1) axes_.push_back(i);
    rank_width_ = std::max(kCell, text_width(std::to_string(mesh.size() - 1)) + 8);
  }
  Block draw() { return block(0); }

 private:
  Block cell(bool gap) const {
    Block out{rank_width_, kCell, ""};
    if (gap) {
      out.svg = text_at(rank_width_ / 2, kCell / 2 + 4, "…", "middle dim");
      return out;
    }
    int64_t place = 0;
    std::string where;
    for (size_t i = 0; i < at_.size(); ++i) {
      place = place * mesh_.axes()[i].size + at_[i];
      if (mesh_.axes()[i].size > 1)
        where += ", " + mesh_.axes()[i].name + " " + std::to_string(at_[i]);
    }
    const std::string rank = std::to_string(mesh_.rank_at(place));
    out.svg =
        format(
            "<rect class=\"rank%s\" x=\"1.5\" y=\"1.5\" width=\"%.1f\" height=\"%.1f\" rx=\"3\">",
            at_ == mine_ ? " mine" : "", rank_width_ - 3, kCell - 3) +
        "<title>rank " + rank + escaped(where) + "</title></rect>" +
        text_at(rank_width_ / 2, kCell / 2 + 4, rank, "middle");
    return out;
  }

  // Rows share the outer axis' place; -1: there is no such axis.
  Block grid(int outer, int inner) {
    auto places = [&](int axis, int64_t most) {
      return axis < 0 ? std::vector<int64_t>{0}
                      : render::shown(mesh_.axes()[static_cast<size_t>(axis)].size, most,
                                      mine_[static_cast<size_t>(axis)]);
    };
    auto name = [&](int axis) {
      return axis < 0 ? std::string() : mesh_.axes()[static_cast<size_t>(axis)].name;
    };
    const std::vector<int64_t> rows = places(outer, 8), columns = places(inner, 8);
    double left = 0;
    for (int64_t row : rows)
      if (outer >= 0)
        left = std::max(left, text_width(name(outer) + " " + std::to_string(row)) + 6);
    Block out;
    double y = 0;
    if (inner >= 0) {
      double x = left;
      for (int64_t column : columns) {
        out.svg += text_at(x + rank_width_ / 2, kLine - 3,
                           column < 0 ? "…" : std::to_string(column), "middle dim");
        x += rank_width_;
      }
      out.svg += text_at(x + 4, kLine - 3, name(inner), "dim");
      out.width = x + 4 + text_width(name(inner));
      y = kLine;
    }
    for (int64_t row : rows) {
      if (outer >= 0 && row >= 0) {
        at_[static_cast<size_t>(outer)] = row;
        out.svg += text_at(0, y + kCell / 2 + 4, name(outer) + " " + std::to_string(row), "dim");
      }
      double x = left;
      for (int64_t column : columns) {
        if (inner >= 0 && column >= 0) at_[static_cast<size_t>(inner)] = column;
        out.svg += moved(cell(row < 0 || column < 0), x, y);
        x += rank_width_;
      }
      out.width = std::max(out.width, x);
      y += kCell;
    }
    out.height = y;
    return out;
  }

  Block block(size_t level) {
    const size_t left = axes_.size() - level;
    if (left == 0) return grid(-1, -1);
    if (left == 1) {
      const int axis = static_cast<int>(axes_[level]);
      return grid(-1, axis);
    }
    if (left == 2) return grid(static_cast<int>(axes_[level]), static_cast<int>(axes_[level + 1]));
    const size_t axis = axes_[level];
    std::vector<Block> parts;
    for (int64_t index : render::shown(mesh_.axes()[axis].size, 5, mine_[axis])) {
      if (index < 0) {
        parts.push_back({20, kCell, text_at(10, kCell / 2 + 4, "…", "middle dim")});
        continue;
      }
      at_[axis] = index;
      parts.push_back(framed(mesh_.axes()[axis].name + " " + std::to_string(index),
                             block(level + 1), level % 2 == 0 ? "outer" : "inner"));
    }
    return flowing(parts);
  }

  const Mesh& mesh_;
  std::vector<int64_t> mine_, at_;
  std::vector<size_t> axes_;  // of more than one place
  double rank_width_ = kCell;
};

std::optional<Mesh> mesh_of(const json::value& value) {
  if (value.is_null()) return std::nullopt;
  const json::object& object = value.as_object();
  const json::array &names = object.at("axes").as_array(), &shape = object.at("shape").as_array();
  std::vector<MeshAxis> axes;
  for (size_t i = 0; i < names.size(); ++i)
    axes.push_back({std::string(names.at(i).as_string()), shape.at(i).to_number<int64_t>()});
  return Mesh(std::move(axes));
}

std::string shape_words(const Mesh& mesh) {
  std::string out;
  for (const MeshAxis& axis : mesh.axes())
    if (axis.size > 1)
      out += (out.empty() ? "" : " × ") + axis.name + " " + report::human_count(axis.size);
  return out;
}

}  // namespace

std::string mesh_picture(const json::object& plan) {
  const auto world = plan.at("world_size").to_number<int64_t>();
  if (world <= 1) return {};
  std::optional<Mesh> device = mesh_of(plan.at("device_mesh"));
  // Under ddp there is no mesh; its replicas are drawn as one axis.
  if (!device) device.emplace(std::vector<MeshAxis>{{"dp", world}});
  const int64_t mine = plan.at("rank").as_object().at("rank").to_number<int64_t>();
  auto drawn = [&](const Mesh& mesh, const std::string& what) {
    return "<div><p class=\"dim\">" + escaped(what + ": " + shape_words(mesh)) + "</p>" +
           picture(what + ", " + shape_words(mesh), MeshDrawing(mesh, mine).draw()) + "</div>\n";
  };
  std::string out = drawn(*device, "Ranks");
  if (std::optional<Mesh> experts = mesh_of(plan.at("moe_mesh")))
    if (experts->place_of(mine)) out += drawn(*experts, "The same ranks, as experts see them");
  return out;
}

}  // namespace meshwright::runs
