#include "buckets.h"

#include <algorithm>

namespace ring_zero {

int64_t bucket_elements(const meshwright::StrategyConfig& config) {
  const double elements = kOptions.read(config.own()).bucket_mb * 1024 * 1024 /
                          static_cast<double>(meshwright::dtype_size(config.mp_policy().reduce));
  return static_cast<int64_t>(std::clamp(elements, 1.0, 1e15));
}

std::vector<Bucket> make_buckets(const std::vector<int64_t>& counts, int64_t limit, int64_t ring) {
  std::vector<Bucket> buckets;
  for (size_t i = counts.size(); i-- > 0;) {
    if (buckets.empty() || buckets.back().elements >= limit) buckets.emplace_back();
    Bucket& bucket = buckets.back();
    bucket.members.push_back(i);
    bucket.offsets.push_back(bucket.elements);
    bucket.elements += counts[i];
  }
  for (Bucket& bucket : buckets) bucket.slice = (bucket.elements + ring - 1) / ring;
  return buckets;
}

Piece piece_of(const Bucket& bucket, size_t member, int64_t count, int64_t place) {
  int64_t start = bucket.offsets[member], first = place * bucket.slice;
  Piece piece;
  piece.begin = std::clamp<int64_t>(first - start, 0, count);
  piece.end = std::clamp<int64_t>(first + bucket.slice - start, 0, count);
  piece.at = std::clamp<int64_t>(start + piece.begin - first, 0, bucket.slice);
  return piece;
}

}  // namespace ring_zero
