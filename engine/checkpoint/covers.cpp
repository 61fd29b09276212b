// covers(): the pieces of a tensor hold every element exactly once.
#include <algorithm>
#include <span>

#include "engine/checkpoint/meta.h"

namespace meshwright::checkpoint {

namespace {

bool boxes_overlap(const Region& a, const Region& b) {
  for (size_t d = 0; d < a.sizes.size(); ++d)
    if (a.offsets[d] >= b.offsets[d] + b.sizes[d] || b.offsets[d] >= a.offsets[d] + a.sizes[d])
      return false;
  return true;
}

// Whether no two boxes share an element. Boxes of a mesh fall apart at planes that cut none of
// them, dimension by dimension; so a file that lists thousands costs no more than sorting them.
// What does not fall apart is compared pair by pair, when it is not much.
bool disjoint(std::span<const Region*> boxes, size_t dims, int level = 0) {
  constexpr int kMostLevels = 32;
  constexpr size_t kMostPairwise = 1000;
  if (boxes.size() < 2) return true;
  for (size_t d = 0; d < dims && level < kMostLevels; ++d) {
    std::sort(boxes.begin(), boxes.end(),
              [&](const Region* a, const Region* b) { return a->offsets[d] < b->offsets[d]; });
    std::vector<size_t> cuts = {0};
    int64_t end = 0;
    for (size_t i = 0; i < boxes.size(); ++i) {
      if (i > 0 && boxes[i]->offsets[d] >= end) cuts.push_back(i);
      end = std::max(end, boxes[i]->offsets[d] + boxes[i]->sizes[d]);
    }
    if (cuts.size() == 1) continue;
    cuts.push_back(boxes.size());
    for (size_t i = 0; i + 1 < cuts.size(); ++i)
      if (!disjoint(boxes.subspan(cuts[i], cuts[i + 1] - cuts[i]), dims, level + 1)) return false;
    return true;
  }
  if (boxes.size() > kMostPairwise) return false;
  for (size_t i = 0; i < boxes.size(); ++i)
    for (size_t j = i + 1; j < boxes.size(); ++j)
      if (boxes_overlap(*boxes[i], *boxes[j])) return false;
  return true;
}

}  // namespace

// The counts add up, and no two pieces share an element.
bool covers(const TensorRecord& tensor) {
  int64_t elements = Region::whole(tensor.shape).count(), sum = 0;
  bool boxes = true;
  std::vector<const Region*> regions;
  for (const Piece& piece : tensor.pieces) {
    sum += piece.region.count();
    if (sum > elements) return false;
    boxes = boxes && piece.region.begin < 0;
    if (piece.region.count() > 0) regions.push_back(&piece.region);
  }
  if (sum != elements) return false;
  if (tensor.shape.empty()) return regions.size() == 1;
  if (boxes) return disjoint(regions, tensor.shape.size());
  std::vector<Region> runs;
  for (const Region* region : regions) {
    runs.push_back(as_run(*region, tensor.shape));
    if (runs.back().flat()) continue;
    std::vector<Region> parts;
    for (const Region* one : regions)
      for (Region& box : as_boxes(*one, tensor.shape)) parts.push_back(std::move(box));
    std::vector<const Region*> all;
    for (const Region& box : parts) all.push_back(&box);
    return disjoint(all, tensor.shape.size());
  }
  std::sort(runs.begin(), runs.end(),
            [](const Region& a, const Region& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < runs.size(); ++i)
    if (runs[i].begin < runs[i - 1].end) return false;
  return true;
}

}  // namespace meshwright::checkpoint
