// A part of a tensor, and what two parts have in common: how any layout reads any other.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "meshwright/export.h"

namespace meshwright {

// Consecutive positions of a sample.
struct PositionRun {
  int64_t position = 0, count = 0;
  bool operator==(const PositionRun&) const = default;
};

// A box of a tensor, a run of its flattened elements, or a run of a box's. Its elements lie in
// row-major order, one after the other.
struct MESHWRIGHT_API Region {
  std::vector<int64_t> offsets, sizes;  // a box: one of each per dimension
  // A run: elements [begin, end) of the box, or of the tensor where there is none.
  int64_t begin = -1, end = -1;

  static Region whole(std::span<const int64_t> shape);
  static Region box(std::vector<int64_t> offsets, std::vector<int64_t> sizes);
  static Region run(int64_t begin, int64_t end);
  static Region run_of_box(std::vector<int64_t> offsets, std::vector<int64_t> sizes, int64_t begin,
                           int64_t end);
  bool within_box() const { return begin >= 0 && !sizes.empty(); }
  bool flat() const { return begin >= 0 && sizes.empty(); }
  int64_t count() const;
  // How it is stored: the box's sizes, or one dimension.
  std::vector<int64_t> stored_shape() const;
  bool operator==(const Region&) const = default;
};

// Whether it lies within a tensor of that shape.
MESHWRIGHT_API bool fits(const Region& region, std::span<const int64_t> shape);
// The same elements as a run when they follow each other in the flattened tensor, else as they
// were.
MESHWRIGHT_API Region as_run(const Region& region, std::span<const int64_t> shape);
// The same elements as boxes, in their order: a run of a box of d dimensions is at most 2 d - 1 of
// them.
MESHWRIGHT_API std::vector<Region> as_boxes(const Region& region, std::span<const int64_t> shape);
// `inner`, a part of the tensor that the box `outer` cuts out of a whole one, as a part of the
// whole: a box within it, or a run of its elements.
MESHWRIGHT_API Region within(const Region& outer, const Region& inner);
// "[0:128, 0:64]", "elements 0 to 8191", or "elements 0 to 4095 of [0:128, 0:64]".
MESHWRIGHT_API std::string to_text(const Region& region);

// Elements both have: `count` from `a` on in the one, from `b` on in the other, positions in their
// own order. Ascending; both must fit.
using Overlap = std::function<void(int64_t a, int64_t b, int64_t count)>;
MESHWRIGHT_API void for_each_overlap(std::span<const int64_t> shape, const Region& a,
                                     const Region& b, const Overlap& visit);

}  // namespace meshwright
