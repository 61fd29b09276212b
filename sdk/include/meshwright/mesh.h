// A named n-dimensional mesh of ranks: arithmetic only, no process groups, memory independent of
// the number of ranks.
//
// Layout is row-major over the rank list, last axis fastest (as torch DeviceMesh): with shape (n0,
// ..., nk) the rank at coordinates (c0, ..., ck) is ranks[((c0*n1 + c1)*n2 + ...) + ck]. The group
// of an axis through a rank holds all ranks that differ in that coordinate only, ascending in it. A
// flattened axis spans adjacent axes and behaves like one axis. Immutable after construction but
// for flatten(); safe to read from several threads. Nothing here is collective.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "meshwright/error.h"
#include "meshwright/export.h"

namespace meshwright {

// The names that axes may have: pp, dp, dp_replicate, dp_shard, dp_shard_cp, dp_cp, cp, tp, ep,
// ep_shard.
MESHWRIGHT_API std::span<const std::string_view> axis_names();

struct MeshAxis {
  std::string name;
  int64_t size = 1;
};

struct FlattenedAxis {
  std::string name;
  std::vector<std::string> axes;  // adjacent axes of the mesh, outer first
};

class MESHWRIGHT_API Mesh {
 public:
  // `ranks`: an ordered list of global ranks to lay out, or empty for 0..size-1. Throws
  // Error(bad_rank_list) when its length is not the product of the sizes or a rank occurs twice,
  // Error(no_such_axis) for a name that is none of axis_names() or used twice.
  explicit Mesh(std::vector<MeshAxis> axes, std::vector<int64_t> ranks = {});

  // Names a run of adjacent axes. Throws Error(no_such_axis) when they are not adjacent axes of
  // this mesh, in order.
  void flatten(std::string name, std::vector<std::string> axes);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  const std::vector<FlattenedAxis>& flattened() const { return flattened_; }
  const std::vector<int64_t>& rank_list() const { return ranks_; }  // empty = 0..size-1
  int64_t size() const { return size_; }                            // number of places

  bool has_axis(std::string_view name) const;  // real or flattened
  // Size of a real or flattened axis; nullopt when there is none of that name.
  std::optional<int64_t> find_size(std::string_view name) const;
  // As find_size, or `fallback`.
  int64_t size(std::string_view name, int64_t fallback = 1) const;

  // The place of a global rank (row-major index), or nullopt when the rank is not in the mesh.
  std::optional<int64_t> place_of(int64_t rank) const;
  int64_t rank_at(int64_t place) const;
  // One coordinate per real axis. Throws Error(rank_out_of_range) when the rank is not in the mesh.
  std::vector<int64_t> coordinates(int64_t rank) const;
  // Coordinate along a real or flattened axis. Throws Error(no_such_axis),
  // Error(rank_out_of_range).
  int64_t coordinate(int64_t rank, std::string_view axis) const;
  // The global ranks that share everything but `axis` with `rank`, in coordinate order.
  std::vector<int64_t> group(int64_t rank, std::string_view axis) const;
  int64_t group_count(std::string_view axis) const;
  // Calls `visit` for every group of the axis, in the one fixed order in which groups are created:
  // by their first rank's place. One group lives in memory at a time.
  void for_each_group(std::string_view axis,
                      const std::function<void(std::span<const int64_t>)>& visit) const;

  // 1-D sub-mesh through `rank`: a real axis first, else a flattened one, else Error(no_such_axis)
  // listing what exists.
  Mesh submesh(std::string_view axis, int64_t rank) const;
  // n-D sub-mesh through `rank`. Real and flattened names may mix as long as they cover disjoint
  // axes, each outside the one after it (("dp_replicate", "dp_shard_cp") is the HSDP mesh); else
  // Error(no_such_axis).
  Mesh submesh(std::span<const std::string> axes, int64_t rank) const;

 private:
  struct Run {  // adjacent axes [first, last)
    size_t first, last;
  };
  MESHWRIGHT_LOCAL Run run_of(std::string_view name) const;
  MESHWRIGHT_LOCAL int64_t product(size_t first, size_t last) const;

  std::vector<MeshAxis> axes_;
  std::vector<FlattenedAxis> flattened_;
  std::vector<int64_t> ranks_;
  std::vector<std::pair<int64_t, int64_t>> sorted_;  // (rank, place) of an explicit list, ascending
  int64_t size_ = 1;
  std::shared_ptr<const Later> later_;  // room for what later versions add
};

}  // namespace meshwright
