#include "sdk/tokenizer/places.h"

#include <algorithm>

#include "meshwright/error.h"

namespace meshwright::tokenizer {

size_t Places::begin_of(size_t composed) const {
  auto after = std::upper_bound(
      changed_.begin(), changed_.end(), composed,
      [](size_t place, const Recomposed& it) { return place < it.composed_begin; });
  if (after == changed_.begin()) return base_ + composed;
  const Recomposed& last = *(after - 1);
  return base_ +
         (composed < last.composed_end ? last.begin : last.end + (composed - last.composed_end));
}

size_t Places::end_of(size_t composed) const {
  auto after = std::lower_bound(
      changed_.begin(), changed_.end(), composed,
      [](const Recomposed& it, size_t place) { return it.composed_begin < place; });
  if (after == changed_.begin()) return base_ + composed;
  const Recomposed& last = *(after - 1);
  return base_ +
         (composed <= last.composed_end ? last.end : last.end + (composed - last.composed_end));
}

ByteRange Places::source(ByteRange composed) const {
  size_t begin = begin_of(composed.begin);
  return {begin, composed.begin == composed.end ? begin : end_of(composed.end)};
}

void check_parts(std::span<const ByteRange> parts, size_t bytes) {
  size_t done = 0;
  for (const ByteRange& part : parts) {
    if (part.begin < done || part.end < part.begin || part.end > bytes)
      throw Error(ErrorCode::internal, "plain parts of a text: [" + std::to_string(part.begin) +
                                           ", " + std::to_string(part.end) + ") after " +
                                           std::to_string(done) + ", of " + std::to_string(bytes) +
                                           " bytes");
    done = part.end;
  }
}

bool overlaps(std::span<const ByteRange> parts, ByteRange range) {
  auto part = std::upper_bound(parts.begin(), parts.end(), range.begin,
                               [](size_t place, const ByteRange& it) { return place < it.end; });
  for (; part != parts.end() && part->begin < range.end; ++part)
    if (part->begin < part->end) return true;
  return false;
}

}  // namespace meshwright::tokenizer
