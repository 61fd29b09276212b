#include "meshwright/mesh.h"

#include <algorithm>
#include <array>
#include <span>

#include "meshwright/mesh_plan.h"
#include "sdk/base/shared_schemas.h"
#include "sdk/base/text.h"
#include "sdk/base/words.h"

namespace meshwright {

std::span<const std::string_view> axis_names() {
  static constexpr std::string_view kNames[] = {
      "pp", "dp", "dp_replicate", "dp_shard", "dp_shard_cp", "dp_cp", "cp", "tp", "ep", "ep_shard"};
  return kNames;
}

namespace {

bool known_axis(std::string_view name) {
  return std::ranges::find(axis_names(), name) != axis_names().end();
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
          .help("use one of " + text::join(axis_names(), ", "));
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

namespace {

using std::to_string;

// The key of a size, with the place it was written at.
Error size_error(const MeshRequest& request, ErrorCode code, std::string message,
                 const std::string& name) {
  Error error(code, std::move(message));
  std::string option = name + "_size";
  error.key("distributed." + option);
  if (request.config.distributed().schema().find(option) != nullptr)
    error.at(request.config.distributed().origin(option));
  return error;
}

// Up to `most` divisors of `value`, the ones nearest to `wanted` first, by their distance.
std::vector<int64_t> nearest_divisors(int64_t value, int64_t wanted, size_t most) {
  std::vector<int64_t> all = text::divisors_near(value, wanted);
  std::sort(all.begin(), all.end(), [&](int64_t a, int64_t b) {
    int64_t da = std::abs(a - wanted), db = std::abs(b - wanted);
    return da != db ? da < db : a < b;
  });
  if (all.size() > most) all.resize(most);
  return all;
}

std::string set_size(const std::string& name, int64_t value) {
  return "set distributed." + name + "_size = " + to_string(value);
}

// Ranks to be laid out: the explicit list, or the world.
int64_t places(const MeshRequest& request) {
  return request.ranks.empty() ? request.world_size : static_cast<int64_t>(request.ranks.size());
}

void check_rank_list(const MeshRequest& request) {
  if (request.world_size < 1)
    throw Error(ErrorCode::rank_out_of_range, "the world size is " + to_string(request.world_size) +
                                                  ", but it must be at least 1")
        .key("world_size");
  std::vector<int64_t> sorted = request.ranks;
  std::sort(sorted.begin(), sorted.end());
  if (auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end())
    throw Error(ErrorCode::bad_rank_list,
                "rank " + to_string(*twice) + " stands twice in the list of ranks")
        .help("name each rank once");
  if (!sorted.empty() && (sorted.front() < 0 || sorted.back() >= request.world_size))
    throw Error(ErrorCode::bad_rank_list,
                "the list of ranks names rank " +
                    to_string(sorted.front() < 0 ? sorted.front() : sorted.back()) +
                    ", but the world has ranks 0 to " + to_string(request.world_size - 1));
}

}  // namespace

int64_t resolve_dp_size(const MeshRequest& request) {
  check_rank_list(request);
  const ParallelSizes& s = request.config.shared().sizes;
  int64_t world = places(request), model = 1;
  for (int64_t size : {s.tp, s.cp, s.pp})
    if (size < 1 || __builtin_mul_overflow(model, size, &model)) model = INT64_MAX / 2;
  std::string factors =
      "tp " + to_string(s.tp) + " * cp " + to_string(s.cp) + " * pp " + to_string(s.pp);
  if (!s.dp) {
    if (world % model == 0) return world / model;
    // The key to point at: the largest factor that can be mended alone, else the largest, for it is
    // the likeliest mistake.
    struct Factor {
      const char* name;
      int64_t size;
    };
    std::array<Factor, 3> by_size = {{{"tp", s.tp}, {"cp", s.cp}, {"pp", s.pp}}};
    std::stable_sort(by_size.begin(), by_size.end(),
                     [](const Factor& a, const Factor& b) { return a.size > b.size; });
    auto rest_of = [&](const Factor& factor) {
      return std::max<int64_t>(1, model / std::max<int64_t>(1, factor.size));
    };
    const auto* alone = std::find_if(by_size.begin(), by_size.end(), [&](const Factor& f) {
      return f.size > 1 && world % rest_of(f) == 0;
    });
    const Factor& wrong = alone == by_size.end() ? by_size[0] : *alone;
    Error error = size_error(request, ErrorCode::world_not_divisible,
                             "world size " + to_string(world) + " is not divisible by " + factors +
                                 " = " + to_string(model),
                             wrong.name);
    if (alone != by_size.end())
      for (int64_t d : nearest_divisors(world / rest_of(wrong), wrong.size, 3))
        error.help(set_size(wrong.name, d));
    else
      error.help(
          "set distributed.tp_size = 1, distributed.cp_size = 1 and distributed.pp_size = 1");
    error.help("use a world size of " +
               to_string(model * std::max<int64_t>(1, (world + model - 1) / model)));
    throw error;
  }
  int64_t dp = *s.dp, total = 0;
  if (__builtin_mul_overflow(dp, model, &total)) total = INT64_MAX;
  if (total == world) return dp;
  if (!request.ranks.empty())
    throw Error(ErrorCode::bad_rank_list, "the list names " + to_string(world) + " ranks, but dp " +
                                              to_string(dp) + " * " + factors + " = " +
                                              to_string(total))
        .key("distributed.dp_size")
        .help("list " + to_string(total) + " ranks");
  Error error = size_error(request, ErrorCode::world_mismatch,
                           "dp " + to_string(dp) + " * " + factors + " = " + to_string(total) +
                               ", but the world has " + to_string(world) + " ranks",
                           "dp");
  if (world % model == 0) error.help("set distributed.dp_size = " + to_string(world / model));
  if (world % model == 0)
    error.help("leave distributed.dp_size out: it is inferred as " + to_string(world / model));
  if (total != INT64_MAX) error.help("use a world size of " + to_string(total));
  throw error;
}

void refuse_sizes(const MeshRequest& request, std::string_view strategy,
                  std::span<const std::string_view> names) {
  const ParallelSizes& s = request.config.shared().sizes;
  struct Size {
    std::string_view name, words;
    int64_t size;
  };
  for (const Size& size :
       {Size{"tp", "tensor parallelism", s.tp}, Size{"pp", "pipeline parallelism", s.pp},
        Size{"cp", "context parallelism", s.cp}, Size{"ep", "expert parallelism", s.ep},
        Size{"dp_replicate", "hybrid sharding", s.dp_replicate}}) {
    if (size.size <= 1 || std::find(names.begin(), names.end(), size.name) == names.end()) continue;
    std::string name(size.name);
    throw size_error(request, ErrorCode::size_not_supported,
                     std::string(strategy) + " has no " + std::string(size.words) +
                         ", but distributed." + name + "_size = " + to_string(size.size),
                     name)
        .help(set_size(name, 1))
        .help("set distributed.strategy = " +
              std::string(distributed_schema().find("strategy")->default_value));
  }
}

MeshPlan plan_sharded_mesh(const MeshRequest& request, bool alone) {
  const ParallelSizes& s = request.config.shared().sizes;
  int64_t dp = resolve_dp_size(request), rep = std::max<int64_t>(1, s.dp_replicate);
  auto replicate_help = [&](Error error) {
    size_t given = 0;
    for (int64_t d : nearest_divisors(dp, rep, 8))
      if ((d < dp || d == 1 || alone) && given++ < 3) error.help(set_size("dp_replicate", d));
    return error;
  };
  if (dp % rep != 0)
    throw replicate_help(
        size_error(request, ErrorCode::dp_replicate_not_divisor,
                   "dp " + to_string(dp) + " is not a multiple of dp_replicate " + to_string(rep),
                   "dp_replicate"));
  if (rep >= dp && rep != 1 && !alone)
    throw replicate_help(
        size_error(request, ErrorCode::dp_replicate_too_large,
                   "dp_replicate " + to_string(rep) + " must be smaller than dp " + to_string(dp) +
                       " (copies alone need no shards: that is plain data parallelism)",
                   "dp_replicate"));
  int64_t stage = dp * s.cp * s.tp;
  if (s.ep > 1 && stage % s.ep != 0) {
    Error error =
        size_error(request, ErrorCode::ep_not_divisor,
                   "dp " + to_string(dp) + " * cp " + to_string(s.cp) + " * tp " + to_string(s.tp) +
                       " = " + to_string(stage) + " is not a multiple of ep " + to_string(s.ep),
                   "ep");
    for (int64_t d : nearest_divisors(stage, s.ep, 3)) error.help(set_size("ep", d));
    throw error;
  }

  MeshPlan plan;
  plan.dp = dp;
  plan.device_mesh.emplace(
      std::vector<MeshAxis>{
          {"pp", s.pp}, {"dp_replicate", rep}, {"dp_shard", dp / rep}, {"cp", s.cp}, {"tp", s.tp}},
      request.ranks);
  plan.device_mesh->flatten("dp", {"dp_replicate", "dp_shard"});
  plan.device_mesh->flatten("dp_shard_cp", {"dp_shard", "cp"});
  plan.device_mesh->flatten("dp_cp", {"dp_replicate", "dp_shard", "cp"});
  std::string shard = s.cp > 1 ? "dp_shard_cp" : "dp_shard";
  plan.fsdp_axes =
      rep > 1 ? std::vector<std::string>{"dp_replicate", shard} : std::vector<std::string>{shard};
  if (s.ep > 1)
    plan.moe_mesh.emplace(
        std::vector<MeshAxis>{{"pp", s.pp}, {"ep_shard", stage / s.ep}, {"ep", s.ep}},
        request.ranks);
  return plan;
}

}  // namespace meshwright
