#include "engine/checkpoint/region.h"

#include <algorithm>

namespace meshwright::checkpoint {

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
      length_ = region.end - region.begin;
      left_ = length_ > 0 ? 1 : 0;
      return;
    }
    size_t inner = shape.size();
    length_ = 1;
    // Dimensions behind `inner` are whole, so that they are one run together with it.
    while (inner > 0 && (inner == shape.size() || region.sizes[inner] == shape[inner])) length_ *= region.sizes[--inner];
    strides_.assign(shape.size(), 1);
    for (size_t d = shape.size(); d-- > 1;) strides_[d - 1] = strides_[d] * shape[d];
    inner_ = inner;
    index_ = region.offsets;
    left_ = region.count() == 0 ? 0 : region.count() / length_;
    place();
  }
  bool done() const { return left_ == 0; }
  int64_t begin() const { return at_; }
  int64_t end() const { return at_ + length_; }
  int64_t local() const { return local_; }  // of begin(), in the region's own order
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
  int64_t at_ = 0, length_ = 0, left_ = 0, local_ = 0;
};

}  // namespace

Region Region::whole(std::span<const int64_t> shape) {
  return {std::vector<int64_t>(shape.size(), 0), {shape.begin(), shape.end()}, -1, -1};
}
Region Region::box(std::vector<int64_t> offsets, std::vector<int64_t> sizes) { return {std::move(offsets), std::move(sizes), -1, -1}; }
Region Region::run(int64_t begin, int64_t end) { return {{}, {}, begin, end}; }

int64_t Region::count() const { return flat() ? end - begin : product(sizes); }

std::vector<int64_t> Region::stored_shape() const { return flat() ? std::vector<int64_t>{end - begin} : sizes; }

bool fits(const Region& region, std::span<const int64_t> shape) {
  if (region.flat()) return region.begin <= region.end && region.end <= product(shape);
  if (region.offsets.size() != shape.size() || region.sizes.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d)
    if (region.offsets[d] < 0 || region.sizes[d] < 0 || region.offsets[d] > shape[d] || region.sizes[d] > shape[d] - region.offsets[d])
      return false;
  return true;
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

std::string to_text(const Region& region) {
  if (region.flat()) return "elements " + std::to_string(region.begin) + " to " + std::to_string(region.end - 1);
  std::string out = "[";
  for (size_t d = 0; d < region.sizes.size(); ++d)
    out += (d ? ", " : "") + std::to_string(region.offsets[d]) + ":" + std::to_string(region.offsets[d] + region.sizes[d]);
  return out + "]";
}

void for_each_overlap(std::span<const int64_t> shape, const Region& a, const Region& b, const Overlap& visit) {
  Runs one(shape, a), other(shape, b);
  while (!one.done() && !other.done()) {
    int64_t from = std::max(one.begin(), other.begin()), to = std::min(one.end(), other.end());
    if (from < to) visit(one.local() + from - one.begin(), other.local() + from - other.begin(), to - from);
    if (one.end() <= other.end())
      one.next();
    else
      other.next();
  }
}

}  // namespace meshwright::checkpoint
