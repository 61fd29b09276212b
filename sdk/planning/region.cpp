#include "meshwright/region.h"

#include <algorithm>

namespace meshwright {

namespace {

int64_t product(std::span<const int64_t> sizes) {
  int64_t out = 1;
  for (int64_t size : sizes) out *= size;
  return out;
}

// The runs of the flattened tensor that a region consists of, one after the other.
class Runs {
 public:
  Runs(std::span<const int64_t> shape, const Region& region) : region_(region) {
    if (region.flat()) {
      at_ = region.begin;
      last_ = length_ = region.end - region.begin;
      left_ = length_ > 0 ? 1 : 0;
      return;
    }
    size_t inner = shape.size();
    length_ = 1;
    // Dimensions behind `inner` are whole, so that they are one run together with it.
    while (inner > 0 && (inner == shape.size() || region.sizes[inner] == shape[inner]))
      length_ *= region.sizes[--inner];
    strides_.assign(shape.size(), 1);
    for (size_t d = shape.size(); d-- > 1;) strides_[d - 1] = strides_[d] * shape[d];
    inner_ = inner;
    index_ = region.offsets;
    if (region.count() == 0) return;
    // A run of the box begins and ends anywhere in it.
    first_ = std::max<int64_t>(region.begin, 0);
    last_ = region.begin < 0 ? product(region.sizes) : region.end;
    int64_t skip = first_ / length_;
    left_ = (last_ + length_ - 1) / length_ - skip;
    local_ = skip * length_;
    for (size_t d = inner_; d-- > 0; skip /= region.sizes[d]) index_[d] += skip % region.sizes[d];
    place();
  }
  bool done() const { return left_ == 0; }
  int64_t begin() const { return at_ + std::max(first_ - local_, int64_t{0}); }
  int64_t end() const { return at_ + std::min(length_, last_ - local_); }
  int64_t local() const {
    return std::max(local_ - first_, int64_t{0});
  }  // of begin(), in the region's own order
  void next() {
    local_ += length_;
    if (--left_ == 0) return;
    for (size_t d = inner_; d-- > 0;) {
      if (++index_[d] < region_.offsets[d] + region_.sizes[d]) break;
      index_[d] = region_.offsets[d];
    }
    place();
  }

 private:
  void place() {
    at_ = 0;
    for (size_t d = 0; d < index_.size(); ++d) at_ += index_[d] * strides_[d];
  }
  const Region& region_;
  std::vector<int64_t> index_, strides_;
  size_t inner_ = 0;
  int64_t at_ = 0, length_ = 0, left_ = 0, local_ = 0;  // local: in the box's order
  int64_t first_ = 0, last_ = 0;                        // of the region, in that order
};

}  // namespace

Region Region::whole(std::span<const int64_t> shape) {
  return {std::vector<int64_t>(shape.size(), 0), {shape.begin(), shape.end()}, -1, -1};
}
Region Region::box(std::vector<int64_t> offsets, std::vector<int64_t> sizes) {
  return {std::move(offsets), std::move(sizes), -1, -1};
}
Region Region::run(int64_t begin, int64_t end) { return {{}, {}, begin, end}; }

Region Region::run_of_box(std::vector<int64_t> offsets, std::vector<int64_t> sizes, int64_t begin,
                          int64_t end) {
  return {std::move(offsets), std::move(sizes), begin, end};
}

int64_t Region::count() const { return begin >= 0 ? end - begin : product(sizes); }

std::vector<int64_t> Region::stored_shape() const {
  return begin >= 0 ? std::vector<int64_t>{end - begin} : sizes;
}

bool fits(const Region& region, std::span<const int64_t> shape) {
  if (region.flat()) return region.begin <= region.end && region.end <= product(shape);
  if (region.offsets.size() != shape.size() || region.sizes.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d)
    if (region.offsets[d] < 0 || region.sizes[d] < 0 || region.offsets[d] > shape[d] ||
        region.sizes[d] > shape[d] - region.offsets[d])
      return false;
  return region.begin < 0 || (region.begin <= region.end && region.end <= product(region.sizes));
}

namespace {

// Elements [begin, end) of what lies behind dimension `dim` of a box, whose place in the dimensions
// before it is fixed.
void cut_run(Region box, size_t dim, int64_t begin, int64_t end, std::vector<Region>& out) {
  if (begin == end) return;
  int64_t width = 1;
  for (size_t d = dim + 1; d < box.sizes.size(); ++d) width *= box.sizes[d];
  auto rows = [&](int64_t from, int64_t to) {
    Region part = box;
    part.offsets[dim] += from;
    part.sizes[dim] = to - from;
    return part;
  };
  int64_t first = begin / width, last = end / width;
  if (begin % width != 0) {
    int64_t until = first == last ? end % width : width;
    cut_run(rows(first, first + 1), dim + 1, begin % width, until, out);
    if (first == last) return;
    ++first;
  }
  if (last > first) out.push_back(rows(first, last));
  if (end % width != 0) cut_run(rows(last, last + 1), dim + 1, 0, end % width, out);
}

}  // namespace

std::vector<Region> as_boxes(const Region& region, std::span<const int64_t> shape) {
  if (region.begin < 0) return {region};
  std::vector<Region> out;
  Region box =
      region.sizes.empty() ? Region::whole(shape) : Region::box(region.offsets, region.sizes);
  if (region.count() > 0 && box.sizes.empty())
    out.push_back(box);
  else
    cut_run(std::move(box), 0, region.begin, region.end, out);
  return out;
}

Region as_run(const Region& region, std::span<const int64_t> shape) {
  if (region.flat()) return region;
  Runs runs(shape, region);
  if (runs.done()) return Region::run(0, 0);
  int64_t begin = runs.begin(), end = begin;
  for (; !runs.done(); runs.next()) {
    if (runs.begin() != end) return region;
    end = runs.end();
  }
  return Region::run(begin, end);
}

Region within(const Region& outer, const Region& inner) {
  if (inner.flat()) return Region::run_of_box(outer.offsets, outer.sizes, inner.begin, inner.end);
  Region out = inner;
  for (size_t d = 0; d < out.offsets.size(); ++d) out.offsets[d] += outer.offsets[d];
  return out;
}

std::string to_text(const Region& region) {
  std::string out;
  if (region.begin >= 0)
    out = "elements " + std::to_string(region.begin) + " to " + std::to_string(region.end - 1);
  if (region.flat()) return out;
  out += region.begin >= 0 ? " of [" : "[";
  for (size_t d = 0; d < region.sizes.size(); ++d)
    out += (d ? ", " : "") + std::to_string(region.offsets[d]) + ":" +
           std::to_string(region.offsets[d] + region.sizes[d]);
  return out + "]";
}

void for_each_overlap(std::span<const int64_t> shape, const Region& a, const Region& b,
                      const Overlap& visit) {
  Runs one(shape, a), other(shape, b);
  while (!one.done() && !other.done()) {
    int64_t from = std::max(one.begin(), other.begin()), to = std::min(one.end(), other.end());
    if (from < to)
      visit(one.local() + from - one.begin(), other.local() + from - other.begin(), to - from);
    if (one.end() <= other.end())
      one.next();
    else
      other.next();
  }
}

}  // namespace meshwright
