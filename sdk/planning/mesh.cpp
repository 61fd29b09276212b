#include "meshwright/mesh.h"

#include <algorithm>

#include "sdk/base/text.h"

namespace meshwright {
namespace {

bool known_axis(std::string_view name) {
  for (std::string_view known : kAxisNames)
    if (known == name) return true;
  return false;
}

Error no_such_axis(const Mesh& mesh, const std::string& what) {
  std::vector<std::string> names;
  for (const MeshAxis& axis : mesh.axes()) names.push_back(axis.name);
  std::string text = what + "; the mesh has " + text::join(names, ", ");
  names.clear();
  for (const FlattenedAxis& axis : mesh.flattened()) names.push_back(axis.name);
  if (!names.empty()) text += " and flattened " + text::join(names, ", ");
  return Error(ErrorCode::no_such_axis, text);
}

}  // namespace

Mesh::Mesh(std::vector<MeshAxis> axes, std::vector<int64_t> ranks)
    : axes_(std::move(axes)), ranks_(std::move(ranks)) {
  for (size_t i = 0; i < axes_.size(); ++i) {
    const MeshAxis& axis = axes_[i];
    if (!known_axis(axis.name))
      throw Error(ErrorCode::no_such_axis, "\"" + axis.name + "\" is not the name of a mesh axis")
          .help("use one of " + text::join(kAxisNames, ", "));
    for (size_t j = 0; j < i; ++j)
      if (axes_[j].name == axis.name)
        throw Error(ErrorCode::no_such_axis, "the mesh has two axes named " + axis.name);
    if (axis.size < 1 || __builtin_mul_overflow(size_, axis.size, &size_))
      throw Error(ErrorCode::bad_rank_list, "mesh axis " + axis.name + " has the impossible size " +
                                                std::to_string(axis.size));
  }
  if (ranks_.empty()) return;
  if (static_cast<int64_t>(ranks_.size()) != size_)
    throw Error(ErrorCode::bad_rank_list, "the list names " + std::to_string(ranks_.size()) +
                                              " ranks, but the mesh has " + std::to_string(size_) +
                                              " places")
        .help("list " + std::to_string(size_) +
              " ranks, or change the sizes so that their product is " +
              std::to_string(ranks_.size()));
  for (size_t i = 0; i < ranks_.size(); ++i)
    sorted_.emplace_back(ranks_[i], static_cast<int64_t>(i));
  std::sort(sorted_.begin(), sorted_.end());
  for (size_t i = 1; i < sorted_.size(); ++i)
    if (sorted_[i].first == sorted_[i - 1].first)
      throw Error(ErrorCode::bad_rank_list,
                  "rank " + std::to_string(sorted_[i].first) + " stands twice in the list of ranks")
          .help("name each rank once");
  if (sorted_.front().first < 0)
    throw Error(ErrorCode::bad_rank_list,
                "a rank is negative: " + std::to_string(sorted_.front().first));
}

void Mesh::flatten(std::string name, std::vector<std::string> axes) {
  auto fail = [&](const std::string& why) {
    return no_such_axis(*this,
                        "cannot flatten " + text::join(axes, ", ") + " to " + name + ": " + why);
  };
  if (!known_axis(name)) throw fail("not the name of a mesh axis");
  if (axes.empty()) throw fail("no axes named");
  if (has_axis(name) && !(axes.size() == 1 && axes[0] == name)) throw fail("the name is taken");
  size_t at = 0;
  while (at < axes_.size() && axes_[at].name != axes[0]) ++at;
  for (size_t i = 0; i < axes.size(); ++i)
    if (at + i >= axes_.size() || axes_[at + i].name != axes[i])
      throw fail("they are not adjacent axes in this order");
  flattened_.push_back({std::move(name), std::move(axes)});
}

Mesh::Run Mesh::run_of(std::string_view name) const {
  for (size_t i = 0; i < axes_.size(); ++i)
    if (axes_[i].name == name) return {i, i + 1};
  for (const FlattenedAxis& f : flattened_)
    if (f.name == name) {
      size_t first = run_of(f.axes.front()).first;
      return {first, first + f.axes.size()};
    }
  throw no_such_axis(*this, "there is no mesh axis " + std::string(name));
}

int64_t Mesh::product(size_t first, size_t last) const {
  int64_t p = 1;
  for (size_t i = first; i < last; ++i) p *= axes_[i].size;
  return p;
}

bool Mesh::has_axis(std::string_view name) const { return find_size(name).has_value(); }

std::optional<int64_t> Mesh::find_size(std::string_view name) const {
  for (const MeshAxis& axis : axes_)
    if (axis.name == name) return axis.size;
  for (const FlattenedAxis& f : flattened_)
    if (f.name == name) {
      Run run = run_of(name);
      return product(run.first, run.last);
    }
  return std::nullopt;
}

int64_t Mesh::size(std::string_view name, int64_t fallback) const {
  return find_size(name).value_or(fallback);
}

std::optional<int64_t> Mesh::place_of(int64_t rank) const {
  if (ranks_.empty()) return rank >= 0 && rank < size_ ? std::optional(rank) : std::nullopt;
  auto it = std::lower_bound(sorted_.begin(), sorted_.end(), std::pair(rank, int64_t{0}));
  return it != sorted_.end() && it->first == rank ? std::optional(it->second) : std::nullopt;
}

int64_t Mesh::rank_at(int64_t place) const {
  if (place < 0 || place >= size_)
    throw Error(ErrorCode::rank_out_of_range, "the mesh has no place " + std::to_string(place) +
                                                  ", only 0 to " + std::to_string(size_ - 1));
  return ranks_.empty() ? place : ranks_[static_cast<size_t>(place)];
}

namespace {
int64_t require_place(const Mesh& mesh, int64_t rank) {
  if (std::optional<int64_t> place = mesh.place_of(rank)) return *place;
  std::string range = mesh.rank_list().empty()
                          ? "ranks 0 to " + std::to_string(mesh.size() - 1)
                          : "a list of " + std::to_string(mesh.size()) + " ranks";
  throw Error(ErrorCode::rank_out_of_range,
              "rank " + std::to_string(rank) + " is not in the mesh, which has " + range);
}
}  // namespace

std::vector<int64_t> Mesh::coordinates(int64_t rank) const {
  int64_t place = require_place(*this, rank);
  std::vector<int64_t> out(axes_.size());
  for (size_t i = axes_.size(); i-- > 0;) {
    out[i] = place % axes_[i].size;
    place /= axes_[i].size;
  }
  return out;
}

int64_t Mesh::coordinate(int64_t rank, std::string_view axis) const {
  Run run = run_of(axis);
  return require_place(*this, rank) / product(run.last, axes_.size()) %
         product(run.first, run.last);
}

std::vector<int64_t> Mesh::group(int64_t rank, std::string_view axis) const {
  Run run = run_of(axis);
  int64_t stride = product(run.last, axes_.size()), count = product(run.first, run.last);
  int64_t place = require_place(*this, rank);
  int64_t base = place - place / stride % count * stride;
  std::vector<int64_t> out(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) out[static_cast<size_t>(i)] = rank_at(base + i * stride);
  return out;
}

int64_t Mesh::group_count(std::string_view axis) const {
  Run run = run_of(axis);
  return size_ / product(run.first, run.last);
}

void Mesh::for_each_group(std::string_view axis,
                          const std::function<void(std::span<const int64_t>)>& visit) const {
  Run run = run_of(axis);
  int64_t stride = product(run.last, axes_.size()), count = product(run.first, run.last),
          block = stride * count;
  std::vector<int64_t> members(static_cast<size_t>(count));
  for (int64_t outer = 0; outer < size_; outer += block)
    for (int64_t inner = 0; inner < stride; ++inner) {
      for (int64_t i = 0; i < count; ++i)
        members[static_cast<size_t>(i)] = rank_at(outer + inner + i * stride);
      visit(members);
    }
}

Mesh Mesh::submesh(std::string_view axis, int64_t rank) const {
  const std::string name(axis);
  return submesh(std::span<const std::string>(&name, 1), rank);
}

Mesh Mesh::submesh(std::span<const std::string> names, int64_t rank) const {
  std::vector<Run> runs;
  std::vector<MeshAxis> axes;
  for (const std::string& name : names) {
    Run run = run_of(name);
    if (!runs.empty() && run.first < runs.back().last)
      throw no_such_axis(*this, "there is no sub-mesh (" + text::join(names, ", ") +
                                    "): the axes overlap or are not in mesh order");
    runs.push_back(run);
    axes.push_back({name, product(run.first, run.last)});
  }
  if (axes.empty()) throw no_such_axis(*this, "a sub-mesh needs at least one axis");
  // The place of the sub-mesh's origin, then row-major steps along each named run.
  int64_t origin = require_place(*this, rank);
  std::vector<int64_t> strides;
  for (size_t i = 0; i < runs.size(); ++i) {
    strides.push_back(product(runs[i].last, axes_.size()));
    origin -= origin / strides[i] % axes[i].size * strides[i];
  }
  std::vector<int64_t> places = {origin};
  for (size_t i = 0; i < runs.size(); ++i) {
    std::vector<int64_t> next;
    next.reserve(places.size() * static_cast<size_t>(axes[i].size));
    for (int64_t place : places)
      for (int64_t step = 0; step < axes[i].size; ++step) next.push_back(place + step * strides[i]);
    places = std::move(next);
  }
  for (int64_t& place : places) place = rank_at(place);
  return Mesh(std::move(axes), std::move(places));
}

}  // namespace meshwright
