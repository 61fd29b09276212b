#include "meshwright/region.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <iterator>
#include <random>

using namespace meshwright;

namespace {

// Flattened indices of a region's elements, in its own order.
std::vector<int64_t> elements(const std::vector<int64_t>& shape, const Region& region) {
  std::vector<int64_t> out;
  if (region.flat()) {
    for (int64_t i = region.begin; i < region.end; ++i) out.push_back(i);
    return out;
  }
  std::vector<int64_t> at = region.offsets;
  for (int64_t n = Region::box(region.offsets, region.sizes).count(); n > 0; --n) {
    int64_t flat = 0;
    for (size_t d = 0; d < shape.size(); ++d) flat = flat * shape[d] + at[d];
    out.push_back(flat);
    for (size_t d = shape.size(); d-- > 0;) {
      if (++at[d] < region.offsets[d] + region.sizes[d]) break;
      at[d] = region.offsets[d];
    }
  }
  if (region.within_box()) out = {out.begin() + region.begin, out.begin() + region.end};
  return out;
}

}  // namespace

TEST_CASE("what two regions have in common is found element by element") {
  std::mt19937 random(1);
  auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (int round = 0; round < 3000; ++round) {
    std::vector<int64_t> shape;
    for (int64_t d = below(4); d > 0; --d) shape.push_back(1 + below(5));
    auto any = [&] {
      if (below(2) == 0) {
        int64_t count = Region::whole(shape).count(), a = below(count + 1), b = below(count + 1);
        return Region::run(std::min(a, b), std::max(a, b));
      }
      std::vector<int64_t> offsets, sizes;
      for (int64_t size : shape) {
        offsets.push_back(below(size + 1));
        sizes.push_back(below(size - offsets.back() + 1));
      }
      Region box = Region::box(offsets, sizes);
      if (below(2) == 0 || shape.empty()) return box;
      int64_t count = box.count(), first = below(count + 1), second = below(count + 1);
      return Region::run_of_box(offsets, sizes, std::min(first, second), std::max(first, second));
    };
    Region a = any(), b = any();
    REQUIRE(fits(a, shape));
    std::vector<int64_t> in_a = elements(shape, a), in_b = elements(shape, b), common;
    int64_t found = 0;
    bool right = true;
    for_each_overlap(shape, a, b, [&](int64_t at_a, int64_t at_b, int64_t count) {
      found += count;
      for (int64_t i = 0; i < count; ++i)
        right = right && in_a[static_cast<size_t>(at_a + i)] == in_b[static_cast<size_t>(at_b + i)];
    });
    std::set_intersection(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(),
                          std::back_inserter(common));
    CHECK(right);
    CHECK(found == static_cast<int64_t>(common.size()));
    std::vector<int64_t> in_boxes;
    std::vector<Region> boxes = as_boxes(a, shape);
    for (const Region& box : boxes) {
      CHECK((box.begin < 0 && fits(box, shape)));
      for (int64_t element : elements(shape, box)) in_boxes.push_back(element);
    }
    CHECK(in_boxes == in_a);
    CHECK(boxes.size() <= std::max<size_t>(2 * shape.size(), 2) - 1);
    Region run = as_run(a, shape);
    CHECK(elements(shape, run) == in_a);
    bool follows = true;
    for (size_t i = 1; i < in_a.size(); ++i) follows = follows && in_a[i] == in_a[i - 1] + 1;
    CHECK(run.flat() == follows);
  }
}

TEST_CASE("regions that leave their tensor do not fit") {
  std::vector<int64_t> shape{4, 6};
  CHECK(fits(Region::whole(shape), shape));
  CHECK(fits(Region::box({4, 0}, {0, 6}), shape));
  CHECK(!fits(Region::box({3, 0}, {2, 6}), shape));
  CHECK(!fits(Region::box({INT64_MAX, 0}, {1, 6}), shape));
  CHECK(!fits(Region::box({0}, {4}), shape));
  CHECK(!fits(Region::box({-1, 0}, {1, 1}), shape));
  CHECK(fits(Region::run_of_box({1, 2}, {2, 3}, 1, 6), shape));
  CHECK(!fits(Region::run_of_box({1, 2}, {2, 3}, 1, 7), shape));
  CHECK(!fits(Region::run_of_box({1, 2}, {2, 3}, 3, 2), shape));
  CHECK(fits(Region::run(0, 24), shape));
  CHECK(!fits(Region::run(0, 25), shape));
  CHECK(!fits(Region::run(5, 4), shape));
  CHECK(to_text(Region::box({1, 0}, {2, 6})) == "[1:3, 0:6]");
  CHECK(to_text(Region::run(3, 9)) == "elements 3 to 8");
}
